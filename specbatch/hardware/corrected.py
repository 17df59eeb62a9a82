"""A profile that learns from the steps of a run."""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np
from numpy.typing import NDArray

from specbatch.hardware.correction import WINDOW, StepCorrector, drifted
from specbatch.hardware.cost import CostTable
from specbatch.hardware.surface import Floats


class CorrectedCosts:
    """Predictions of a profile, times what the run has shown so far.

    What slows passes down slows drafts down too, as far as nobody knows better: drafts may be rare, and they
    are only made as long as they seem to be worth their price. What is seen of drafts themselves (other
    parts of the machine, a profile that was wrong about them alone) is a correction of its own on top.

    Args:
        table: The profile.

    Attributes:
        verify: Corrector of target passes.
        draft: Corrector of drafts, beside that of passes.
        around_s: Seconds that steps take besides, the median of the last ones.
        asking_s: Seconds that drafts take which need no pass, the median of the last steps with some.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.verify, self.draft = StepCorrector(), StepCorrector()
        self.around_s = self.asking_s = 0.0
        self._around: deque[float] = deque(maxlen=WINDOW)
        self._asking: deque[float] = deque(maxlen=WINDOW)

    @property
    def drift(self) -> str:
        """Why the profile should be measured again; empty while it fits."""
        factors = (("passes", self.verify.factor), ("drafts", self._draft_factor))
        return " and ".join(f"{what} took {by:.2g} times" for what, by in factors if drifted(by))

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
        self.draft.observe(self.verify.factor * self.table.draft_tree_s(*work), real)

    def observe_around(self, seconds: float) -> None:
        """Learn from a step what it took besides its pass and its drafts."""
        self._around.append(seconds)
        self.around_s = statistics.median(self._around)

    def observe_asking(self, seconds: float) -> None:
        """Learn from a step what it took to look drafts up and to weigh them, without any pass."""
        self._asking.append(seconds)
        self.asking_s = statistics.median(self._asking)

    def verify_s(self, tokens: int, context: float, rows: int | None = None) -> float:
        """See :meth:`CostTable.verify_s`."""
        return self.verify.factor * self.table.verify_s(tokens, context, rows)

    def verify_curve(self, most: int, context: float, rows: int) -> Floats:
        """See :meth:`CostTable.verify_curve`."""
        return self.verify.factor * self.table.verify_curve(most, context, rows)

    def draft_s(self, rows: int, width: int) -> float:
        """See :meth:`CostTable.draft_s`."""
        return self._draft_factor * self.table.draft_s(rows, width)

    def draft_tree_s(self, rows: int, width: int, levels: float) -> float:
        """See :meth:`CostTable.draft_tree_s`."""
        return self._draft_factor * self.table.draft_tree_s(rows, width, levels)

    def prefill_s(self, tokens: int) -> float:
        """See :meth:`CostTable.prefill_s`."""
        return self.verify.factor * self.table.prefill_s(tokens)

    def beside_s(self, prefill: NDArray[np.int64]) -> Floats:
        """See :meth:`CostTable.beside_s`."""
        return self.verify.factor * self.table.beside_s(prefill)

    def step_s(self, tokens: int, context: float, rows: int, prefill: int) -> float:
        """See :meth:`CostTable.step_s`."""
        return self.verify.factor * self.table.step_s(tokens, context, rows, prefill)

    @property
    def _draft_factor(self) -> float:
        return self.verify.factor * self.draft.factor
