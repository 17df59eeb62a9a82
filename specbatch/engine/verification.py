"""What the target says about the drafted tokens of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from specbatch.engine.executor import Executor
from specbatch.engine.scratch import Scratch
from specbatch.rows import Row
from specbatch.sampling import Draw
from specbatch.step import Work
from specbatch.tree import TokenTree
from specbatch.verify import Verdict, Visit, walk_level_by_level

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
        self._picked = Scratch()

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
        if all(item.tree is None for item in due):
            chosen = self._executor.choose(logits, [self._draw_at(item.row, ()) for item in due])
            return [Verdict((), token) for token in chosen]
        roots = [0, *accumulate(1 + item.drafted for item in due)]

        def choose(visits: Sequence[Visit]) -> list[int | None]:
            places = [roots[visit.tree_index] + visit.node for visit in visits]
            draws = [self._draw_at(due[visit.tree_index].row, visit.path_tokens) for visit in visits]
            return self._executor.choose(self._rows(logits, places), draws)

        return walk_level_by_level([_tree(item) for item in due], choose)

    def _rows(self, logits: Tensor, places: list[int]) -> Tensor:
        """Some rows of the logits, without a copy where they lie together."""
        first, count = places[0], len(places)
        if places == list(range(first, first + count)):
            return logits[first : first + count]
        index = torch.tensor(places, device=logits.device)
        if logits.device.type != "cpu":
            return logits[index]
        return torch.index_select(logits, 0, index, out=self._picked.rows(count, logits.shape[1]))


def _tree(item: Work) -> TokenTree:
    row = item.row
    return TokenTree.root(row.token(row.committed - 1)) if item.tree is None else item.tree


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
        pages, root = item.row.pages, item.row.cached + item.count - 1
        for depth, node in enumerate(() if verdict is None else verdict.path, start=1):
            if node != depth:
                for slots, place in ((sources, root + node), (targets, root + depth)):
                    slots.append(pages[place // page_size] * page_size + place % page_size)
    return sources, targets
