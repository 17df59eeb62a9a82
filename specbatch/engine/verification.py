"""What the target says about the drafted tokens of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from torch import Tensor

from specbatch.engine.executor import Executor
from specbatch.pages import slots_of
from specbatch.rows import Row
from specbatch.sampling import Draw
from specbatch.verify import Verdict, Visit, walk_level_by_level
from specbatch.work import Work

DrawAt = Callable[[Row, tuple[int, ...]], Draw]
"""What is needed to choose a row's token behind its committed ones and these."""


class Verifier:
    """Walks the trees of a pass.

    Args:
        executor: Chooses.
        draw_at: The row's randomness, parameters and history along a path.
    """

    def __init__(self, executor: Executor, draw_at: DrawAt) -> None:
        self._executor, self._draw_at = executor, draw_at

    def verify(self, work: Sequence[Work], logits: Tensor) -> list[Verdict | None]:
        """Walk every row's tree; a row without one gets its token all the same.

        Args:
            work: The work of the pass.
            logits: For each item that yields a token those of the row's last committed token, then of
                its drafted ones; float32 ``[wanted, vocab]``.

        Returns:
            One verdict for each item; ``None`` where no token was due.
        """
        due = [item for item in work if item.yields_token]
        verdicts = iter(self._walk_all(due, logits) if due else ())
        return [next(verdicts) if item.yields_token else None for item in work]

    def _walk_all(self, due: Sequence[Work], logits: Tensor) -> list[Verdict]:
        roots = [0, *accumulate(1 + item.drafted for item in due)]

        def choose(visits: Sequence[Visit]) -> list[int | None]:
            places = [roots[visit.tree_index] + visit.node for visit in visits]
            draws = [self._draw_at(due[visit.tree_index].row, visit.path_tokens) for visit in visits]
            return self._executor.choose(logits, places, draws)

        return walk_level_by_level([item.tree for item in due], choose)


def accepted_moves(
    work: Sequence[Work], verdicts: Sequence[Verdict | None], page_size: int
) -> tuple[list[int], list[int]]:
    """Which slots hold the keys and values of accepted tokens, and where they belong.

    Args:
        work: Work before it is committed.
        verdicts: One for each.
        page_size: Tokens in a page.

    Returns:
        Sources and targets, as many; those in place already are left out.
    """
    sources: list[int] = []
    targets: list[int] = []
    for item, verdict in zip(work, verdicts, strict=True):
        root, path = item.row.cached + item.count - 1, () if verdict is None else verdict.path
        moved = [(node, depth) for depth, node in enumerate(path, start=1) if node != depth]
        sources += slots_of(item.row.pages, (root + node for node, _ in moved), page_size)
        targets += slots_of(item.row.pages, (root + depth for _, depth in moved), page_size)
    return sources, targets
