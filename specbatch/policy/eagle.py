"""Dynamic draft trees of a fixed size (EAGLE-2, Li et al. 2024, section 4)."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, StepView, bounded


class EaglePolicy(EvenPolicy):
    """Expand the likeliest nodes of each level, then verify the likeliest of all of them.

    The expansion (section 4.1) is the drafter's part, the reranking (section 4.2) is this one's.

    Args:
        shape: Levels, nodes expanded per level, nodes verified.
    """

    name = "eagle"

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape

    @property
    def largest(self) -> TreeShape:
        """The tree of a row that is not cut short."""
        return self.shape

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """The same tree for every row, or what is left of it."""
        return [bounded(self.shape, row) for row in view.rows]
