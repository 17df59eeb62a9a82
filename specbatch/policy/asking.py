"""When rows that draft nothing else are asked for what costs no pass of a draft model."""

from __future__ import annotations

_EVERY, _SELDOM = 4, 32
"""Of so many steps one asks where the last time that paid, or where it has not for long."""

_MARGIN = 1.5
"""So many times what asking takes it must have gained, on average, for every step to ask."""

_MEMORY = 16
"""Steps that the average goes back."""

_HOPE = 0.1
"""Gain that is assumed before anything was seen."""


class Asking:
    """Free drafts are not quite free: they are looked up and weighed.

    Every step asks as long as that pays on average, however rarely; where it does not, fewer and fewer do.
    """

    def __init__(self) -> None:
        self._gain, self._price = _HOPE, 0.0
        self._asked, self._every = 0, _EVERY

    def is_due(self, step: int, price: float) -> bool:
        """Whether a step asks all rows.

        Args:
            step: Its number.
            price: What that takes, as a share of a step without.
        """
        if self._gain < _MARGIN * price and step < self._asked + self._every:
            return False
        self._asked, self._price = step, price
        return True

    def found(self, gain: float) -> None:
        """What a step that asked gains by what it got, as a share of its rate; 0 where it took nothing."""
        self._gain += (gain - self._gain) / _MEMORY
        self._every = _EVERY if gain > self._price else min(2 * self._every, _SELDOM)
