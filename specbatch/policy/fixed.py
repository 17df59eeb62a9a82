"""The same number of drafted tokens for every row: the baseline (Leviathan et al. 2023, section 2)."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.draft.base import TreeShape
from specbatch.policy.base import bounded, fit
from specbatch.rows import Row
from specbatch.tree import TokenTree


class FixedPolicy:
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

    def shapes(self, rows: Sequence[Row]) -> list[TreeShape | None]:
        """γ for every row, or what is left of it."""
        return [bounded(self.shape, row) for row in rows]

    def select(self, drafts: Sequence[TokenTree], shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """Everything within γ."""
        return [fit(draft, shape) for draft, shape in zip(drafts, shapes, strict=True)]
