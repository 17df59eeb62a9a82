"""Plain decoding in which rows with time sit out for those without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, StepView, view_of
from specbatch.policy.costed import Instruments
from specbatch.policy.lengths import LengthModel
from specbatch.policy.need import need_of, promises
from specbatch.policy.rest import Rest, done
from specbatch.policy.starts import held_back
from specbatch.rows import Row
from specbatch.work import Work


class RestingPolicy(EvenPolicy):
    """Deferral alone.

    Args:
        instruments: Costs of passes, and how long rows may sit out.
    """

    name = "off+deferral"

    def __init__(self, instruments: Instruments) -> None:
        self._costs, self._lengths = instruments.costs, LengthModel()
        self._rest = Rest(self._lengths, instruments.min_progress)
        absent = instruments.absence or "no profile of this machine and model"
        self.notice = "" if self._costs is not None else f"nobody sits out: {absent}"

    @property
    def largest(self) -> None:
        """Nothing is drafted."""

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Rows with time sit out while others need a faster step."""
        work = list(work) if self._costs is None else done(work, held_back(work, now))
        view = view_of(work, now, 0)
        for row in view.rows:
            self._lengths.advance(row)
        if self._costs is None or not any(map(promises, view.rows)):
            return self._rest.keep(work, {})
        needs = [need_of(item.row, now, self._lengths.remaining(item.row)) for item in work]
        plan = self._rest.plan(work, view, self._costs, needs)
        return self._rest.keep(work, plan.left_out(np.ones((len(view.rows), 1))))

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """``None`` for every row."""
        return [None] * len(view.rows)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        self._lengths.ended(row)
        self._rest.forget(row)
