"""Plain decoding in which rows with time sit out for those without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.policy.base import EvenPolicy, StepView, view_of
from specbatch.policy.costed import Instruments, prices
from specbatch.policy.lengths import LengthModel
from specbatch.policy.need import need_of
from specbatch.policy.rest import Rest
from specbatch.policy.selection import Candidates, Selection, select
from specbatch.rows import Row
from specbatch.step import Work


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
        view = view_of(work, now, 0)
        for row in view.rows:
            self._lengths.advance(row)
        if self._costs is None or not view.rows:
            return list(work)
        return self._rest.keep(work, view, self._predict)

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """``None`` for every row."""
        return [None] * len(view.rows)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        self._lengths.ended(row)
        self._rest.forget(row)

    def _predict(self, view: StepView) -> Selection:
        """A step of one token each."""
        assert self._costs is not None, "nobody sits out without a profile"
        alone = np.ones(1)
        needs = [need_of(row, view.now, self._lengths.remaining(row)) for row in view.rows]
        step_s, other_s = prices(self._costs, view, 0.0)
        return select([Candidates(alone, need) for need in needs], step_s, other_s)
