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

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.policy.calibration_error import CalibrationError
from specbatch.policy.evidence import Counts, Trust
from specbatch.policy.forest import FEW, Drafts, Floats, Integers, plain_nodes
from specbatch.rows import Row
from specbatch.tree import TokenTree

SOURCES = 4
"""Sets of up to two drafters that may have proposed a token: none known, first, second, both."""

LAG = 8
"""Drafts that are learnt from together, once there have been twice as many."""

_DEPTHS, _RANKS = 8, 4  # deeper and lower-ranked tokens share the last cell
_KNOTS = np.array([0.003, 0.02, 0.07, 0.2, 0.4, 0.6, 0.8, 0.93, 0.98, 0.997])
_KNOT_ODDS, _KNOT_NUMBERS = np.log(_KNOTS / (1.0 - _KNOTS)), np.arange(len(_KNOTS))
_PLAIN_KNOT_ODDS: list[float] = _KNOT_ODDS.tolist()
_PRIOR_SLOPE = 0.7
_PRIOR_WEIGHT, _CELL_WEIGHT = 10.0, 15.0  # candidates that the layer above counts for
_ROW_WINDOW, _ROW_DOUBT = 12.0, 1.0
_GROUP_WINDOW, _GROUP_DOUBT = 64.0, 2.0
_LEAST = 1e-4
"""No probability is below this, nor above one minus it."""


class Calibration:
    """Acceptance probabilities of drafted tokens.

    Args:
        drafter: Name of the drafter; of two, joined by a plus sign.
    """

    def __init__(self, drafter: str = "drafter") -> None:
        groups, cells = 2 * SOURCES, 2 * SOURCES * _DEPTHS * _RANKS
        self._group_counts, self._cell_counts = Counts(groups, len(_KNOTS)), Counts(cells, len(_KNOTS))
        self._group_trust = Trust(groups, _GROUP_WINDOW, _GROUP_DOUBT)
        self._row_trust = Trust(64 * SOURCES, _ROW_WINDOW, _ROW_DOUBT)
        self._slots: dict[Row, int] = {}
        self._curves: Floats | None = None
        self._error = CalibrationError(drafter)
        self._learnt = 0
        self._pending: list[tuple[Drafts, Sequence[Sequence[int]]]] = []

    def conditional(self, drafts: Drafts) -> Floats:
        """Probability that a node is accepted once its parent is, float64 ``[n]``; of siblings 1 at most.

        What it says of roots means nothing.
        """
        few = len(drafts.sources) <= FEW
        return self.conditional_plain(drafts) if few else self.conditional_arrays(drafts)

    def conditional_arrays(self, drafts: Drafts) -> Floats:
        """As :meth:`conditional`, in whole-step operations."""
        return drafts.forest.capped(self._estimate(self._places(drafts))[2])

    def conditional_plain(self, drafts: Drafts) -> Floats:
        """Twin of :meth:`conditional_arrays` that goes from node to node: for few of them the quicker one."""
        curves, sources = self._table(), drafts.sources.tolist()
        known: list[float] = []
        slots = self._slots_of_rows(drafts.rows)
        lately, own = self._group_trust.shifts(), self._row_trust.shifts()
        for tree, row, slot in zip(drafts.trees, drafts.rows, slots, strict=True):
            sampled = row.prompt.params.temperature > 0.0
            here: list[float] = [1.0]
            for node in plain_nodes(tree):
                source = sources[len(known) + len(here)]
                group = 2 * source + sampled
                cell = (group * _DEPTHS + min(node.depth, _DEPTHS) - 1) * _RANKS + min(node.rank, _RANKS - 1)
                low, share = _knot(node.reported)
                counted = curves[cell, low] * (1.0 - share) + curves[cell, low + 1] * share
                odds = _odds(float(counted)) + float(lately[group])
                odds = _odds(_probability(odds)) + float(own[slot * SOURCES + source])
                here.append(_probability(odds))
            known += _capped(here, tree)
        return np.array(known)

    def paths(self, drafts: Drafts) -> Floats:
        """f: probability that the whole path to each node is accepted, float64 ``[n]``; 1 for roots."""
        return drafts.forest.paths(self.conditional(drafts))

    def learn(self, drafts: Drafts, chosen: Sequence[Sequence[int]]) -> None:
        """Take note of what the target decided; estimates follow after at most ``LAG`` drafts.

        Learning from several steps at once takes hardly longer than from one, which matters where there
        are few rows. No more may be waiting than half of what is known: the first drafts of a run are
        learnt from at once.

        Args:
            drafts: All that was proposed in a step, whether it was verified or not.
            chosen: For each tree the tokens that the target chose from its root on, in order.
        """
        self._pending.append((drafts, chosen))
        waiting = sum(tree.size > 0 for each, _ in self._pending for tree in each.trees)
        if waiting >= min(LAG, 1 + self._learnt // 2):
            self.catch_up()

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self.catch_up()
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._row_trust.clear(slot * SOURCES, SOURCES)

    def report(self) -> dict[str, object]:
        """Calibration error by drafter and depth, JSON-ready."""
        self.catch_up()
        return self._error.report()

    def catch_up(self) -> None:
        """Learn from all noted steps at once, each compared with the estimates that it was made with."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        sizes = [len(drafts.rows) for drafts, _ in pending]
        self._learnt += sum(tree.size > 0 for drafts, _ in pending for tree in drafts.trees)
        drafts = Drafts.joined([drafts for drafts, _ in pending])
        nodes, accepted = drafts.forest.reached([tokens for _, chosen in pending for tokens in chosen])
        steps = np.repeat(np.arange(len(pending)), sizes)[drafts.forest.owners[nodes]]
        hits = accepted.astype(np.float64)
        places = self._places(drafts).at(nodes)
        counted, lately, own = self._estimate(places)
        depths, sources = drafts.forest.depths[nodes], drafts.sources[nodes]
        self._error.add(sources, depths, (drafts.forest.reported[nodes], own, hits))
        self._group_counts.add(places.groups, (places.knots, places.shares), hits)
        self._cell_counts.add(places.cells, (places.knots, places.shares), hits)
        self._curves = None
        top = drafts.forest.ranks[nodes] == 0
        self._group_trust.add(steps[top], places.groups[top], (counted[top], hits[top]))
        self._row_trust.add(steps[top], places.slots[top], (lately[top], hits[top]))

    def _estimate(self, places: _Places) -> tuple[Floats, Floats, Floats]:
        """Of each node: by counts alone, with what changed lately, and with the row's own record."""
        curves, cells, knots, shares = self._table(), places.cells, places.knots, places.shares
        counted = curves[cells, knots] * (1.0 - shares) + curves[cells, knots + 1] * shares
        lately = _shifted(counted, self._group_trust.shifts()[places.groups])
        return counted, lately, _shifted(lately, self._row_trust.shifts()[places.slots])

    def _places(self, drafts: Drafts) -> _Places:
        """Where the evidence about each node is kept."""
        forest = drafts.forest
        sampled = np.array([row.prompt.params.temperature > 0.0 for row in drafts.rows])[forest.owners]
        groups = drafts.sources * 2 + sampled
        depths = np.minimum(np.maximum(forest.depths, 1), _DEPTHS) - 1
        cells = (groups * _DEPTHS + depths) * _RANKS + np.minimum(forest.ranks, _RANKS - 1)
        return _Places(groups, cells, self._slots_of(drafts), *_knots(forest.reported))

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
        slots = np.array(self._slots_of_rows(drafts.rows))
        return slots[drafts.forest.owners] * SOURCES + drafts.sources

    def _slots_of_rows(self, rows: Sequence[Row]) -> list[int]:
        """Where each row keeps its records."""
        slots = []
        for row in rows:
            if row not in self._slots:
                taken = set(self._slots.values())
                self._slots[row] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            slots.append(self._slots[row])
        self._row_trust.reserve((max(slots) + 1) * SOURCES)
        return slots


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where the evidence about n nodes is kept, and what their drafter said of them.

    Attributes:
        groups: Drafter and mode, int64 ``[n]``.
        cells: Depth and rank within those, int64 ``[n]``.
        slots: The row's record of the drafter, int64 ``[n]``.
        knots: Knot below the reported probability, int64 ``[n]``.
        shares: Distance from it as a share of that to the next knot, float64 ``[n]``.
    """

    groups: Integers
    cells: Integers
    slots: Integers
    knots: Integers
    shares: Floats

    def at(self, nodes: Integers) -> _Places:
        """Those of some nodes."""
        groups, cells, slots = self.groups[nodes], self.cells[nodes], self.slots[nodes]
        return _Places(groups, cells, slots, self.knots[nodes], self.shares[nodes])


def _knots(reported: Floats) -> tuple[Integers, Floats]:
    """Knot below each probability and its distance as a share of that to the next, on the log odds scale."""
    place = np.interp(_log_odds(reported), _KNOT_ODDS, _KNOT_NUMBERS)
    low = np.minimum(place.astype(np.int64), len(_KNOTS) - 2)
    return low, place - low


def _log_odds(probabilities: Floats) -> Floats:
    bounded = np.minimum(np.maximum(probabilities, _LEAST), 1.0 - _LEAST)
    odds: NDArray[np.float64] = np.log(bounded / (1.0 - bounded))
    return odds


def _shifted(probabilities: Floats, shifts: Floats) -> Floats:
    shifted: Floats = 1.0 / (1.0 + np.exp(-_log_odds(probabilities) - shifts))
    return shifted


def _knot(reported: float) -> tuple[int, float]:
    """Twin of :func:`_knots` for one probability."""
    odds = _odds(reported)
    low = min(max(bisect_right(_PLAIN_KNOT_ODDS, odds) - 1, 0), len(_PLAIN_KNOT_ODDS) - 2)
    below, above = _PLAIN_KNOT_ODDS[low : low + 2]
    return low, min(max((odds - below) / (above - below), 0.0), 1.0)


def _odds(probability: float) -> float:
    """Twin of :func:`_log_odds` for one probability."""
    bounded = min(max(probability, _LEAST), 1.0 - _LEAST)
    return math.log(bounded / (1.0 - bounded))


def _probability(odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-odds))


def _capped(conditional: list[float], tree: TokenTree) -> list[float]:
    """Twin of :meth:`Forest.capped` for one tree."""
    if tree.is_chain:
        return conditional
    parents, sums = tree.parents.tolist(), [0.0] * len(conditional)
    for parent, each in zip(parents[1:], conditional[1:], strict=True):
        sums[parent] += each
    below = zip(conditional[1:], parents[1:], strict=True)
    return [conditional[0], *(each / max(1.0, sums[parent]) for each, parent in below)]
