"""The same number of drafted tokens for every row: the baseline (Leviathan et al. 2023, section 2)."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, StepView, bounded


class FixedPolicy(EvenPolicy):
    """Chains of γ tokens, verified whole.

    Args:
        gamma: γ, at least 1.
    """

    name = "fixed"

    def __init__(self, gamma: int) -> None:
        self.shape = TreeShape(levels=gamma, width=1, nodes=gamma)

    @property
    def largest(self) -> TreeShape:
        """The tree of a row that is not cut short."""
        return self.shape

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """γ for every row, or what is left of it."""
        return [bounded(self.shape, row) for row in view.rows]
