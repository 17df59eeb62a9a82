"""The benefit of the doubt: a row in a hurry is drafted for a few times before it is given up.

Forecasts know what drafts brought to others. A row whose promises no forecast can keep would be given up
before anybody has seen what its own drafts bring, and many texts can be drafted far better than most: copies,
edits, code. So a row is taken to draft well for a few steps. Others wait meanwhile, and
that has to be worth it: trials are few as long as they are in vain.
"""

from __future__ import annotations

import numpy as np

from specbatch.policy.forecast import Forecast
from specbatch.policy.forest import Floats
from specbatch.rows import Row

_HOPE = 0.8
"""Acceptance of each further token that is hoped for."""

_STEPS = 16
"""Steps that show what a row can be drafted like: answers begin with what nobody foresees."""

_WORTH = 0.4
"""Acceptance of first tokens from which a trial was worth it."""

_TRIALS = 4.0
"""Trials in vain, after which there is another one now and then only."""

_PER_STEP = 1 / 200
"""Trials that each step adds."""


class Trials:
    """Which rows are on trial.

    Args:
        forecast: What is known of drafts.
    """

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._left, self._steps = _TRIALS, 0
        self._open: dict[Row, int] = {}  # since which step
        self._over: set[Row] = set()

    def step(self) -> None:
        """Another step has begun."""
        self._steps += 1
        self._left = min(_TRIALS, self._left + _PER_STEP)

    def hopes(self, row: Row) -> bool:
        """Whether a row in a hurry may be taken to draft well."""
        if row in self._over:
            return False
        if row not in self._open:
            if self._left < 1.0:
                return False
            self._left -= 1.0
            self._open[row] = self._steps
        if self._steps < self._open[row] + _STEPS:
            return True
        del self._open[row]
        self._over.add(row)
        self._left += self._forecast.own(row) >= _WORTH
        return False

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self._open.pop(row, None)
        self._over.discard(row)


def hoped(f: Floats, levels: int) -> Floats:
    """Probabilities of paths as they are hoped to be, where they are forecast to be lower.

    Args:
        f: Of a row's nodes, falling, -1 behind the last one, float64 ``[C]``.
        levels: Depth that is asked for.
    """
    chain = np.where(np.arange(len(f)) < levels, _HOPE ** np.arange(1, len(f) + 1), -1.0)
    better: Floats = np.maximum(f, chain)
    return better
