"""A profile that learns from the steps of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specbatch.hardware.correction import StepCorrector
from specbatch.hardware.cost import CostTable
from specbatch.hardware.surface import Floats


class CorrectedCosts:
    """Predictions of a profile, times what the run has shown so far.

    Passes and drafts are corrected apart: other processes, other text and other parts of the machine
    slow them by different factors.

    Args:
        table: The profile.

    Attributes:
        verify: Corrector of target passes.
        draft: Corrector of drafts.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.verify, self.draft = StepCorrector(), StepCorrector()

    @property
    def drift(self) -> str:
        """Why the profile should be measured again; empty while it fits."""
        reasons = (("passes", self.verify.drift), ("drafts", self.draft.drift))
        return "; ".join(f"{what}: {reason}" for what, reason in reasons if reason)

    def observe_pass(self, work: tuple[int, float, int, int], real: float) -> None:
        """Learn from a target pass.

        Args:
            work: Tokens, context, rows and prefill, as :meth:`step_s` takes them.
            real: Seconds that it took.
        """
        self.verify.observe(self.table.step_s(*work), real)

    def observe_draft(self, work: tuple[int, int, float], real: float) -> None:
        """Learn from a draft.

        Args:
            work: Rows, width and levels, as :meth:`draft_tree_s` takes them.
            real: Seconds that it took.
        """
        self.draft.observe(self.table.draft_tree_s(*work), real)

    def verify_s(self, tokens: int, context: float, rows: int | None = None) -> float:
        """See :meth:`CostTable.verify_s`."""
        return self.verify.factor * self.table.verify_s(tokens, context, rows)

    def verify_curve(self, most: int, context: float, rows: int) -> Floats:
        """See :meth:`CostTable.verify_curve`."""
        return self.verify.factor * self.table.verify_curve(most, context, rows)

    def draft_s(self, rows: int, width: int) -> float:
        """See :meth:`CostTable.draft_s`."""
        return self.draft.factor * self.table.draft_s(rows, width)

    def draft_tree_s(self, rows: int, width: int, levels: float) -> float:
        """See :meth:`CostTable.draft_tree_s`."""
        return self.draft.factor * self.table.draft_tree_s(rows, width, levels)

    def prefill_s(self, tokens: int) -> float:
        """See :meth:`CostTable.prefill_s`."""
        return self.verify.factor * self.table.prefill_s(tokens)

    def beside_s(self, prefill: NDArray[np.int64]) -> Floats:
        """See :meth:`CostTable.beside_s`."""
        return self.verify.factor * self.table.beside_s(prefill)

    def step_s(self, tokens: int, context: float, rows: int, prefill: int) -> float:
        """See :meth:`CostTable.step_s`."""
        return self.verify.factor * self.table.step_s(tokens, context, rows, prefill)
