"""Speculate and select: what a step asks the target beyond the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specbatch.draft.base import DraftRequest, Observed, TreeShape
from specbatch.draft.guarded import GuardedDrafter
from specbatch.engine.timing import Timed
from specbatch.ledger import Ledger
from specbatch.policy import Calibration, Drafts, SpeculationPolicy, view_of
from specbatch.randomness import Stream
from specbatch.rows import Row
from specbatch.step import Step
from specbatch.tree import TokenTree
from specbatch.verify import Verdict
from specbatch.work import Work

_BEHIND = 8
"""Tokens since a row's last draft that are caught up with for next to nothing."""


class Speculator:
    """A policy and the drafter it feeds on.

    Args:
        policy: How much each row drafts, and what of it is verified.
        drafter: Where candidates come from.
        budget: Drafted tokens that one target pass may carry, all rows together.
        ledger: Where drafts are counted.
        calibration: Learns what the drafter's probabilities are worth.
        clock: Seconds on the run clock.

    Attributes:
        spent: Rows, width and levels of this step's drafts that took passes of a draft model; ``None``
            without any, and where one took in much text first, such as a prompt.
        asking_s: Seconds that this step's drafts took with their selection; ``None`` without any, and where
            one took a pass of a draft model.
        draft_s: Seconds that the drafter took for all of this step's drafts.
        allowed: Drafted tokens that a power cap leaves to the step; ``None`` without one.
        drafted: Tokens drafted in this step for each row that drafted.
        paid: The same, without rows whose drafts took no pass of a draft model.
        fallback: Why this step decodes plainly although the policy wanted drafts; empty when it does not.
        select_s: Seconds that policy and calibration have taken so far.
    """

    def __init__(
        self,
        policy: SpeculationPolicy,
        drafter: GuardedDrafter,
        budget: int,
        ledger: Ledger,
        calibration: Calibration,
        clock: Callable[[], float],
    ) -> None:
        self.policy, self.drafter = policy, drafter
        self._budget, self._ledger, self._calibration, self._clock = budget, ledger, calibration, clock
        self._drafts: Drafts | None = None
        self.spent: tuple[int, int, int] | None = None
        self.asking_s: float | None = None
        self.draft_s = self.select_s = 0.0
        self.allowed: int | None = None
        self.drafted: dict[Row, int] = {}
        self.paid: dict[Row, int] = {}
        self.fallback = ""
        self._known: dict[Row, int] = {}  # tokens of each row that the draft model has taken in

    def trees(
        self,
        work: Sequence[Work],
        rooms: Callable[[Sequence[int]], list[int]],
        stream_of: Callable[[Row], Stream],
    ) -> list[TokenTree | None]:
        """What is to be verified with each item of a plan.

        Args:
            work: The plan.
            rooms: For each item how many drafted tokens it might have → for how many there is memory.
            stream_of: A row's randomness.

        Returns:
            A tree or nothing for each item.
        """
        self._drafts = self.spent = self.asking_s = None
        self.draft_s, self.fallback, self.drafted, self.paid = 0.0, "", {}, {}
        trees: list[TokenTree | None] = [None] * len(work)
        budget = self._budget if self.allowed is None else min(self._budget, self.allowed)
        view = view_of(work, self._clock(), budget)
        with Timed(self, "select_s"):
            wanted = dict(zip(view.rows, self.policy.shapes(view), strict=True))
        if not budget:
            self.fallback = "power cap" if view.rows else ""
            return trees
        if not any(wanted.values()):
            return trees
        asked = [wanted.get(item.row) for item in work]
        room = rooms([0 if shape is None else shape.most for shape in asked])
        fitting = [within(shape, nodes) for shape, nodes in zip(asked, room, strict=True)]
        drafting = [(i, shape) for i, shape in enumerate(fitting) if shape is not None]
        if not drafting:
            self.fallback = "no memory"
            return trees
        view = replace(view, budget=min(budget, sum(room)))
        faults = sum(self.drafter.faults.values())
        shapes = [shape for _, shape in drafting]
        requests = [DraftRequest(work[i].row, shape, stream_of(work[i].row)) for i, shape in drafting]
        asked_at = self._clock()
        self._drafts = self._proposed(requests)
        if sum(self.drafter.faults.values()) > faults:
            self.fallback = "drafter failed"
        with Timed(self, "select_s"):
            chosen = self.policy.select(view, self._drafts, shapes)
        self.asking_s = None if self.paid else self._clock() - asked_at
        for (i, _), tree in zip(drafting, within_budget(chosen, budget), strict=True):
            trees[i] = tree if tree.size else None
        return trees

    def learn(self, work: Sequence[Work], verdicts: Sequence[Verdict | None]) -> None:
        """See what the target decided about this step's drafts; before the rows are told.

        Args:
            work: The work of the pass.
            verdicts: One for each item.
        """
        if self._drafts is None or self._drafts.empty:
            return
        chosen = {}
        for item, verdict in zip(work, verdicts, strict=True):
            if verdict is not None:
                tokens = [] if item.tree is None else item.tree.tokens_of(verdict.path)
                chosen[item.row] = tokens if verdict.bonus is None else [*tokens, verdict.bonus]
        with Timed(self, "select_s"):
            self._calibration.learn(self._drafts, [chosen.get(row, []) for row in self._drafts.rows])

    @property
    def drafting(self) -> tuple[float, dict[Row, int]]:
        """Seconds that this step's drafts took, and the tokens drafted for each row."""
        return self.draft_s, self.drafted

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        self._calibration.forget(row)
        self._known.pop(row, None)

    def calibration_report(self) -> dict[str, object]:
        """How far predicted acceptance was from what happened, JSON-ready."""
        return self._calibration.report()

    def _proposed(self, requests: Sequence[DraftRequest]) -> Drafts:
        """Let the drafter work, and count what it did."""
        started = self._clock()
        drafts = self.drafter.propose(requests)
        self.draft_s = self._clock() - started
        for request, draft in zip(requests, drafts, strict=True):
            drafted = self.drafted[request.row] = draft.tree.size + draft.discarded
            self._ledger.record_draft(request.row, drafted, draft.passes, draft.flops)
        paid = [request for request, draft in zip(requests, drafts, strict=True) if draft.passes]
        self.paid = {request.row: self.drafted[request.row] for request in paid}
        behind = [request.row.committed - self._known.get(request.row, 0) for request in paid]
        self._known.update((request.row, request.row.committed) for request in paid)
        if paid and max(behind) <= _BEHIND:
            levels = max(min(r.shape.levels, d.passes) for r, d in zip(requests, drafts, strict=True))
            self.spent = len(paid), max(request.shape.width for request in paid), levels
        unknown = (np.zeros(len(draft.tree), dtype=np.int64) for draft in drafts)
        sources = [
            none if draft.sources is None else draft.sources
            for draft, none in zip(drafts, unknown, strict=True)
        ]
        rows = [request.row for request in requests]
        return Drafts([draft.tree for draft in drafts], rows, np.concatenate(sources))


def within(shape: TreeShape | None, nodes: int) -> TreeShape | None:
    """The shape with so many nodes at most; ``None`` when that is nothing."""
    if shape is None or shape.most <= nodes:
        return shape
    if nodes < 1:
        return None
    return replace(
        shape,
        levels=min(shape.levels, nodes),
        width=min(shape.width, nodes),
        nodes=min(shape.nodes, nodes),
        free_levels=min(shape.free_levels, nodes),
    )


def within_budget(trees: Sequence[TokenTree], budget: int) -> list[TokenTree]:
    """Of all drafted tokens together the likeliest ones, at most ``budget``; ties by order.

    A node is never likelier than its parent, so what is left of each tree hangs together.
    """
    sizes = [tree.size for tree in trees]
    if sum(sizes) <= budget:
        return list(trees)
    owner = np.repeat(np.arange(len(trees)), sizes)
    paths = np.concatenate([tree.path_log_probs[1:] for tree in trees])
    kept = np.argsort(-paths, kind="stable")[:budget]
    counts = np.bincount(owner[kept], minlength=len(trees)).tolist()
    return [tree.best(count) for tree, count in zip(trees, counts, strict=True)]


def observed(
    work: Sequence[Work],
    verdicts: Sequence[Verdict | None],
    step: Step,
    features: NDArray[np.float32] | None,
) -> list[Observed]:
    """What the target stored for each row and the row keeps.

    Args:
        work: The work of a pass, committed since.
        verdicts: One for each item; rows whose text ended within an accepted path are not looked at.
        step: The pass.
        features: ``[captured layers, T, hidden]`` of it.
    """
    known = None if features is None else features.transpose(1, 0, 2)
    found = []
    for item, verdict, start in zip(work, verdicts, step.row_starts[:-1], strict=True):
        path = () if verdict is None else verdict.path
        first = item.row.cached - item.count - len(path)
        root = start + item.count - 1
        seen = None
        if known is not None:
            own = known[start : root + 1]
            seen = np.concatenate([own, known[[root + node for node in path]]]) if path else own.copy()
        found.append(Observed(item.row, first, seen))
    return found
