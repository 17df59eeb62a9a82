"""What the target's decisions say about a drafter, as sums of which the oldest parts fade."""

from __future__ import annotations

import numpy as np

from specbatch.policy.forest import Floats, Integers

_MEMORY = 300.0  # candidates per knot that are remembered
_CHANCE = 5.0
_LEAST_VARIANCE = 1e-4


class Counts:
    """Candidates and accepted ones at knots of a probability, the oldest fading.

    Args:
        curves: Curves that are counted.
        knots: Knots of each.

    Attributes:
        seen: Candidates, float64 ``[curves, knots]``.
    """

    def __init__(self, curves: int, knots: int) -> None:
        self.seen = np.zeros((curves, knots))
        self._hits = np.zeros_like(self.seen)

    def add(self, curves: Integers, place: tuple[Integers, Floats], hits: Floats) -> None:
        """Enter candidates.

        Args:
            curves: Curve of each, int64 ``[k]``.
            place: Knot below each and its distance as a share of that to the next, ``[k]`` both.
            hits: 1 for accepted ones, float64 ``[k]``.
        """
        low, share = place
        for knots, weights in ((low, 1.0 - share), (low + 1, share)):
            np.add.at(self.seen, (curves, knots), weights)
            np.add.at(self._hits, (curves, knots), weights * hits)
        kept = np.minimum(1.0, _MEMORY / np.maximum(self.seen, 1.0))
        self.seen *= kept
        self._hits *= kept

    def shrunk(self, above: Floats, weight: float) -> Floats:
        """Shares of accepted ones, as if ``weight`` candidates more had been as the layer above says."""
        shares: Floats = (self._hits + weight * above) / (self.seen + weight)
        return shares


class Trust:
    """Recent candidates against what was expected of them, as a shift of log odds.

    What chance explains is not believed: with z standard deviations between accepted and expected ones
    the shift is scaled by ``z² / (z² + 5)``.

    Args:
        size: Records.
        window: Candidates of a record that count.
        doubt: Candidates of each outcome that are added to both sides.
    """

    def __init__(self, size: int, window: float, doubt: float) -> None:
        self._window, self._doubt = window, doubt
        self._sums = np.zeros((4, size))  # candidates, accepted, expected, variance of the accepted
        self._shifts = np.zeros(size)

    def add(self, steps: Integers, records: Integers, outcomes: tuple[Floats, Floats]) -> None:
        """Enter candidates, the steps' one after another.

        However many there are in a step, a record keeps three quarters of what it had.

        Args:
            steps: Step of each candidate, from 0 on, int64 ``[k]``.
            records: Record of each, int64 ``[k]``.
            outcomes: What was expected of each, and 1 for accepted ones; ``[k]`` each.
        """
        expected, hits = outcomes
        shape = (int(steps.max(initial=0)) + 1, self._sums.shape[1])
        place = steps * shape[1] + records
        counts = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)
        kept = np.maximum(0.75, (1.0 - 1.0 / self._window) ** counts)
        later = np.ones(shape)  # what the steps behind each leave of it
        later[:-1] = np.cumprod(kept[:0:-1], axis=0)[::-1]
        self._sums *= kept[0] * later[0]
        weights = later.ravel()[place]
        news = (np.ones_like(hits), hits, expected, expected * (1.0 - expected))
        self._sums += [np.bincount(records, each * weights, minlength=shape[1]) for each in news]
        self._update()

    def _update(self) -> None:
        seen, accepted, hoped, variance = self._sums
        surprise = (accepted - hoped) ** 2 / (variance + _LEAST_VARIANCE)
        accepted, hoped, seen = accepted + self._doubt, hoped + self._doubt, seen + 2.0 * self._doubt
        shifts = np.log(accepted / hoped) - np.log((seen - accepted) / (seen - hoped))
        self._shifts = shifts * surprise / (surprise + _CHANCE)

    def shifts(self) -> Floats:
        """By record, float64 ``[size]``."""
        return self._shifts

    def reserve(self, size: int) -> None:
        """Have at least so many records."""
        more = size - len(self._shifts)
        if more > 0:
            self._sums = np.pad(self._sums, ((0, 0), (0, more)))
            self._shifts = np.pad(self._shifts, (0, more))

    def clear(self, first: int, count: int) -> None:
        """Empty some records."""
        self._sums[:, first : first + count] = 0.0
        self._shifts[first : first + count] = 0.0
