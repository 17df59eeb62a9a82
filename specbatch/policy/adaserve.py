"""Trees sized by the rows' promises, depth and width by load (AdaServe, Li et al. 2026, section 4)."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView, bounded
from specbatch.policy.costed import CostedPolicy

# The published form; its constants are not published, these are ours.
_B1, _C1 = 48, 4
_B2, _C2 = 16, 0


class AdaservePolicy(CostedPolicy):
    """SLO phase, then throughput phase, on trees whose shape depends on the number of rows alone."""

    name = "adaserve"

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """``d = clip(⌊B₁ / (n + c₁)⌋ - 1, 1, d_max)``, ``w = clip(⌊B₂ / n⌋ + c₂, 1, w_max)``."""
        rows = len(view.rows)
        levels = min(max(_B1 // (rows + _C1) - 1, 1), self.largest.levels)
        width = min(max(_B2 // rows + _C2, 1), self.largest.width)
        return [bounded(TreeShape(levels, width, self.largest.nodes), row) for row in view.rows]
