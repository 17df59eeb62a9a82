"""Keeps count of who sits steps out, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specbatch.policy.base import StepView, decodes
from specbatch.policy.deferral import Outlook, Seat, sit_out
from specbatch.policy.lengths import LengthModel
from specbatch.policy.need import slack_s
from specbatch.policy.selection import Selection
from specbatch.rows import Row
from specbatch.step import Work

Predict = Callable[[StepView], Selection]


class Rest:
    """Deferral over a run.

    Args:
        lengths: What rows still have to write.
        min_progress: For each row in how many steps it advances at least once, at least 1.
    """

    def __init__(self, lengths: LengthModel, min_progress: Callable[[Row], int]) -> None:
        self._lengths, self._min_progress = lengths, min_progress
        self._rested: dict[Row, int] = {}

    def keep(self, work: Sequence[Work], view: StepView, predict: Predict) -> list[Work]:
        """The part of a plan that this step does.

        Args:
            work: The plan.
            view: The step with all of it.
            predict: What is expected of a step.
        """
        step_s = predict(view).step_s
        seats = [self._seat(item, view.now, step_s) for item in work]

        def outlook(some: Sequence[Seat]) -> Outlook:
            rows = [seat.row for seat in some if not seat.prefill]
            if not rows:
                return Outlook(0.0, {})
            prefill = sum(seat.prefill for seat in some)
            return _outlook(rows, predict(StepView(rows, view.now, view.budget, prefill)))

        resting = sit_out(seats, outlook)
        for i, item in enumerate(work):
            self._rested[item.row] = self._rested.get(item.row, 0) + 1 if i in resting else 0
        return [item for i, item in enumerate(work) if i not in resting]

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self._rested.pop(row, None)

    def _seat(self, item: Work, now: float, step_s: float) -> Seat:
        row = item.row
        slack = slack_s(row, now, self._lengths.remaining(row), step_s)
        prefill = 0 if decodes(item) else item.count
        return Seat(row, prefill, slack, self._rested.get(row, 0), self._min_progress(row) - 1)


def _outlook(rows: Sequence[Row], selection: Selection) -> Outlook:
    lacking = 1.0 - selection.expected / selection.needed
    pairs = zip(rows, lacking.tolist(), selection.hopeless.tolist(), strict=True)
    missing, hopeless = {}, set()
    for row, lack, lost in pairs:
        if lack > 1e-9 or lost:
            missing[row] = max(0.0, lack)
        if lost:
            hopeless.add(row)
    return Outlook(selection.step_s, missing, frozenset(hopeless))
