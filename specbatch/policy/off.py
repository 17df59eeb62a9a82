"""Plain decoding."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, StepView


class OffPolicy(EvenPolicy):
    """No row ever speculates."""

    name = "off"

    @property
    def largest(self) -> None:
        """Nothing is drafted."""

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """``None`` for every row."""
        return [None] * len(view.rows)
