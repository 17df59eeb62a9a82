"""When rows that draft nothing else are asked for what costs no pass of a draft model."""

from __future__ import annotations

_EVERY, _SELDOM = 4, 16
"""Of so many steps one asks where the last one had no use for what it got, or none lately had."""

_WORTH = 0.03
"""Mean predicted gain of steps that ask, from which all do: about three times what asking takes."""

_MEMORY = 16
"""Steps that the mean goes back."""


class Asking:
    """Free drafts are looked up and weighed in some hundredths of a step's time: worth it where texts repeat.

    Every step asks as long as that has paid on average, however rarely; where it has not, fewer and fewer do.
    """

    def __init__(self) -> None:
        self._worth = 2 * _WORTH
        self._asked, self._every = 0, _EVERY

    def is_due(self, step: int) -> bool:
        """Whether this step asks all rows."""
        if self._worth < _WORTH and step < self._asked + self._every:
            return False
        self._asked = step
        return True

    def found(self, gain: float) -> None:
        """What a step that asked gains by what it got, as a share of its rate; 0 where it took nothing."""
        self._worth += (gain - self._worth) / _MEMORY
        self._every = _EVERY if gain > 0.0 else min(2 * self._every, _SELDOM)
