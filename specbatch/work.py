"""``Work``: what a step is to do for one row. A plan is a list of it; tensors come later."""

from __future__ import annotations

from dataclasses import dataclass

from specbatch.rows import Row
from specbatch.tree import TokenTree

PIECE = 16
"""Prompt tokens that are done or left out together where a prompt is not done in one go."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much of one row a pass computes.

    Attributes:
        row: The row; its pages already reach to the last token of this work.
        count: Committed tokens to compute, starting at ``row.cached``; at least 1.
        tree: Drafted continuations of the last committed token, which is the root; only where the
            pass yields a token. Node i is stored behind the row's text, i positions after the root.
    """

    row: Row
    count: int
    tree: TokenTree | None = None

    @property
    def yields_token(self) -> bool:
        """Whether the pass reaches the row's last committed token, so that the next one is due."""
        return self.row.cached + self.count == self.row.committed

    @property
    def drafted(self) -> int:
        """Drafted tokens in the pass."""
        return 0 if self.tree is None else self.tree.size
