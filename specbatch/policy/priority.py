"""Plain decoding in strict priority order: rows of the most urgent tier first, the others when they are done.

What servers with priorities do today, in its strictest form: a step holds the rows of one tier, the most
urgent one that has rows in flight. A small batch is a fast one, so urgent rows get the speed of a machine
that has nothing else to do; whoever is less urgent waits, whatever was promised to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, Ranked, StepView
from specbatch.work import Work


class PriorityPolicy(EvenPolicy):
    """Strict priority.

    Args:
        tiers: By name.
    """

    name = "priority"

    def __init__(self, tiers: Mapping[str, Ranked]) -> None:
        self._tiers = tiers

    @property
    def largest(self) -> None:
        """Nothing is drafted."""

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """The rows of the most urgent tier, prompts included."""
        ranks = [self._tiers[item.row.prompt.tier].priority for item in work]
        first = min(ranks, default=0)
        return [item for item, rank in zip(work, ranks, strict=True) if rank == first]

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """``None`` for every row."""
        return [None] * len(view.rows)
