"""Plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.draft.base import TreeShape
from specbatch.rows import Row
from specbatch.tree import TokenTree


class OffPolicy:
    """No row ever speculates."""

    name = "off"

    @property
    def largest(self) -> None:
        """Nothing is drafted."""

    def shapes(self, rows: Sequence[Row]) -> list[TreeShape | None]:
        """``None`` for every row."""
        return [None] * len(rows)

    def select(self, drafts: Sequence[TokenTree], shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """The roots alone: nothing was asked for."""
        return [draft.best(0) for draft, _ in zip(drafts, shapes, strict=True)]
