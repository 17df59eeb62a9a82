"""Verify as much of every row's chain as pays, all rows together (DSpark)."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView
from specbatch.policy.costed import CostedPolicy


class DsparkPolicy(CostedPolicy):
    """All candidate positions of all rows by f; the prefix with the most expected tokens per second.

    Promises are not looked at.
    """

    name = "dspark"
    keeps_promises = False

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """Chains as deep as allowed."""
        levels = self.largest.levels
        return [self._stopping.of(TreeShape(levels, 1, levels), row) for row in view.rows]
