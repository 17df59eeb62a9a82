"""What a drafter's probabilities are worth: acceptance learnt online from the target's decisions.

A drafter says how likely it thinks a token; whether the target takes it depends on the drafter, on depth
and rank of the token, on greedy decoding or shared noise, and on the row at hand. Each of these adds one
layer, and little evidence leaves the layer above as it is:

* a conservative curve over the reported probability;
* counts over knots of that probability, for drafter and mode, and below that for depth and rank
  (histogram binning, Zadrozny & Elkan 2001, with linear weights between knots);
* a shift of the log odds for what changed lately, for drafter and mode, and for each row by itself.

Only candidates whose parent was accepted are evidence. Nothing is random, and memory is a few hundred
numbers and a few for each row in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbatch.policy.calibration_error import CalibrationError
from specbatch.policy.forest import Drafts, Floats, Integers
from specbatch.rows import Row

SOURCES = 4
"""Sets of up to two drafters that may have proposed a token: none known, first, second, both."""

_DEPTHS, _RANKS = 8, 4  # deeper and lower-ranked tokens share the last cell
_KNOTS = np.array([0.003, 0.02, 0.07, 0.2, 0.4, 0.6, 0.8, 0.93, 0.98, 0.997])
_PRIOR_SLOPE = 0.7
_PRIOR_WEIGHT, _CELL_WEIGHT = 10.0, 15.0  # candidates that the layer above counts for
_MEMORY = 300.0  # candidates per knot that are remembered
_ROW_WINDOW, _ROW_DOUBT = 12.0, 1.0
_GROUP_WINDOW, _GROUP_DOUBT = 64.0, 2.0
_CHANCE = 5.0
_LEAST = 1e-4
"""No probability is below this, nor above one minus it."""


class Calibration:
    """Acceptance probabilities of drafted tokens.

    Args:
        drafter: Name of the drafter; of two, joined by a plus sign.
    """

    def __init__(self, drafter: str = "drafter") -> None:
        groups, cells = 2 * SOURCES, 2 * SOURCES * _DEPTHS * _RANKS
        self._group_counts, self._cell_counts = _Counts(groups), _Counts(cells)
        self._group_trust = _Trust(groups, _GROUP_WINDOW, _GROUP_DOUBT)
        self._row_trust = _Trust(64 * SOURCES, _ROW_WINDOW, _ROW_DOUBT)
        self._slots: dict[Row, int] = {}
        self._curves: Floats | None = None
        self._error = CalibrationError(drafter)

    def conditional(self, drafts: Drafts) -> Floats:
        """Probability that a node is accepted once its parent is, float64 ``[n]``; of siblings 1 at most."""
        return drafts.forest.capped(self._estimate(drafts)[2])

    def paths(self, drafts: Drafts) -> Floats:
        """f: probability that the whole path to each node is accepted, float64 ``[n]``; 1 for roots."""
        return drafts.forest.paths(self.conditional(drafts))

    def learn(self, drafts: Drafts, chosen: Sequence[Sequence[int]]) -> None:
        """See what the target decided.

        Args:
            drafts: All that was proposed, whether it was verified or not.
            chosen: For each tree the tokens that the target chose from its root on, in order.
        """
        nodes, accepted = drafts.forest.reached(chosen)
        if not len(nodes):
            return
        hits = accepted.astype(np.float64)
        estimates = self._estimate(drafts)
        depths, sources = drafts.forest.depths[nodes], drafts.sources[nodes]
        reported = drafts.forest.reported[nodes]
        self._error.add(sources, depths, (reported, estimates[2][nodes], hits))
        groups, cells = (index[nodes] for index in _places(drafts))
        place = _knots(reported)
        self._group_counts.add(groups, place, hits)
        self._cell_counts.add(cells, place, hits)
        self._curves = None
        top = drafts.forest.ranks[nodes] == 0
        self._group_trust.add(groups[top], estimates[0][nodes][top], hits[top])
        slots = self._slots_of(drafts)[nodes][top]
        self._row_trust.add(slots, estimates[1][nodes][top], hits[top])

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._row_trust.clear(slot * SOURCES, SOURCES)

    def report(self) -> dict[str, object]:
        """Calibration error by drafter and depth, JSON-ready."""
        return self._error.report()

    def _estimate(self, drafts: Drafts) -> tuple[Floats, Floats, Floats]:
        """Of each node: by counts alone, with what changed lately, and with the row's own record."""
        groups, cells = _places(drafts)
        low, share = _knots(drafts.forest.reported)
        curves = self._table()
        counted = curves[cells, low] * (1.0 - share) + curves[cells, low + 1] * share
        lately = _shifted(counted, self._group_trust.shifts()[groups])
        return counted, lately, _shifted(lately, self._row_trust.shifts()[self._slots_of(drafts)])

    def _table(self) -> Floats:
        """Acceptance at each knot of each cell, float64 ``[cells, knots]``."""
        if self._curves is None:
            prior = np.broadcast_to(_PRIOR_SLOPE * _KNOTS, self._group_counts.seen.shape)
            of_groups = self._group_counts.shrunk(prior, _PRIOR_WEIGHT)
            above = np.repeat(of_groups, _DEPTHS * _RANKS, axis=0)
            self._curves = self._cell_counts.shrunk(above, _CELL_WEIGHT)
        return self._curves

    def _slots_of(self, drafts: Drafts) -> Integers:
        """Where each node's row keeps its record of the node's source, int64 ``[n]``."""
        slots = []
        for row in drafts.rows:
            if row not in self._slots:
                taken = set(self._slots.values())
                self._slots[row] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            slots.append(self._slots[row])
        self._row_trust.reserve((max(slots) + 1) * SOURCES)
        return np.array(slots)[drafts.forest.owners] * SOURCES + drafts.sources


class _Counts:
    """Candidates and accepted ones at knots of the reported probability, the oldest fading."""

    def __init__(self, curves: int) -> None:
        self.seen = np.zeros((curves, len(_KNOTS)))
        self._hits = np.zeros_like(self.seen)

    def add(self, curves: Integers, place: tuple[Integers, Floats], hits: Floats) -> None:
        """Enter candidates between two knots each."""
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


class _Trust:
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

    def add(self, records: Integers, expected: Floats, hits: Floats) -> None:
        """Enter candidates; however many there are at once, a record keeps three quarters of what it had."""
        counts = np.bincount(records, minlength=self._sums.shape[1])
        self._sums *= np.maximum(0.75, (1.0 - 1.0 / self._window) ** counts)
        news = (np.ones_like(hits), hits, expected, expected * (1.0 - expected))
        self._sums += [np.bincount(records, each, minlength=len(counts)) for each in news]
        seen, accepted, hoped, variance = self._sums
        surprise = (accepted - hoped) ** 2 / (variance + _LEAST)
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


def _places(drafts: Drafts) -> tuple[Integers, Integers]:
    """Group and cell of each node, int64 ``[n]``."""
    forest = drafts.forest
    sampled = np.array([row.prompt.params.temperature > 0.0 for row in drafts.rows])[forest.owners]
    groups = drafts.sources * 2 + sampled
    depths = np.clip(forest.depths - 1, 0, _DEPTHS - 1)
    return groups, (groups * _DEPTHS + depths) * _RANKS + np.minimum(forest.ranks, _RANKS - 1)


def _knots(reported: Floats) -> tuple[Integers, Floats]:
    """Knot below each probability and its distance as a share of that to the next, on the log odds scale."""
    place = np.interp(_log_odds(reported), _log_odds(_KNOTS), np.arange(len(_KNOTS)))
    low = np.minimum(place.astype(np.int64), len(_KNOTS) - 2)
    return low, place - low


def _log_odds(probabilities: Floats) -> Floats:
    bounded = np.clip(probabilities, _LEAST, 1.0 - _LEAST)
    odds: NDArray[np.float64] = np.log(bounded / (1.0 - bounded))
    return odds


def _shifted(probabilities: Floats, shifts: Floats) -> Floats:
    shifted: Floats = 1.0 / (1.0 + np.exp(-_log_odds(probabilities) - shifts))
    return shifted
