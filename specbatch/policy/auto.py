"""Speculation where it pays, row by row and step by step, and nothing where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView, bounded, view_of
from specbatch.policy.costed import LEAST_GAIN, CostedPolicy, Instruments, joule_prices, prices
from specbatch.policy.forecast import FREE, FULL, Forecast
from specbatch.policy.forest import Drafts, Floats
from specbatch.policy.menu import NOTHING, Choice, Prospect, decide, menu
from specbatch.policy.need import Needs, promises
from specbatch.policy.rest import Rest, done
from specbatch.policy.selection import CandidateTable, select
from specbatch.policy.trial import Trials, hoped
from specbatch.rows import Row
from specbatch.step import Work
from specbatch.tree import TokenTree

EVERY = 12
"""Steps after which the choice is weighed again although nothing has changed; fewer in the beginning."""

_SELDOM = 3
"""Times as many where nothing is drafted: what that costs is no more than what drafting would have won."""

_FEW = 8
"""The choice is weighed again once more than one row in so many has come or gone."""

PROBE_SHARE = 0.02
"""Share of the time that is spent on finding out whether drafting would pay, once that is known."""

_PROBED = 3
"""Rows that find it out for all: the first draft for a row goes through all of its prompt."""

_KNOWN = 6
"""Drafts that tell whether drafting pays; after fewer, more time is spent on finding out."""

_FREE_EVERY = 4
"""Of so many steps one asks for free drafts of rows that had no use for the last ones."""

_SAMPLED = 4
"""Of so many steps one is learnt from when a few drafts have been seen."""

_PROBE = TreeShape(2, 1, 2)


@dataclass(frozen=True, slots=True)
class _Standing:
    """A choice, of which rows it was made, which of them it gives drafts, and how many steps it stands."""

    choice: Choice = NOTHING
    rows: frozenset[Row] = frozenset()
    gaining: frozenset[Row] = frozenset()
    until: int = 0


class AutoPolicy(CostedPolicy):
    """AdaServe's promises and DSpark's prefix, on drafts of a shape that is chosen by predicted gain.

    Before anything is drafted, forecasts tell for each choice (nothing, chains, trees; for all rows or
    for those in a hurry) who would sit out and what the selection would be. The choice is kept until
    another one is clearly better. Rows of which the forecast selects nothing do not draft. Where nothing
    is drafted, a short draft now and then finds out whether that is still right.

    Args:
        largest: Bounds that no row's tree exceeds.
        instruments: Costs and calibration.
    """

    name = "auto"

    def __init__(self, largest: TreeShape, instruments: Instruments) -> None:
        super().__init__(largest, instruments)
        self._forecast = Forecast()
        self._trials = Trials(self._forecast)
        self._free = replace(largest, free=True) if instruments.has_free else None
        self._menu = menu(largest)
        self._rest = Rest(self.lengths, instruments.min_progress)
        self._calm = self._hurry = self._standing = _Standing()
        self._lucky: frozenset[Row] = frozenset()  # rows whose last draft had something worth verifying
        self._steps = self._since_probe = 0
        self._probe_every = 1

    @property
    def mode(self) -> str:
        """The present choice: ``off``, ``chain`` or ``tree``."""
        return self._standing.choice.mode

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Rows with time sit out while others need a faster step."""
        self._steps += 1
        self._trials.step()
        self._standing, costs = self._calm, self._costs
        view = view_of(work, now, self.largest.nodes * len(work))
        if costs is None or not any(map(promises, view.rows)):
            return self._rest.keep(work, {})
        plan = self._rest.plan(work, view, costs, self.needs([item.row for item in work], now))
        hurried = frozenset(view.rows[i] for i in plan.hurried)
        if not hurried:
            return self._rest.keep(work, {})
        weighed = self._steps < self._hurry.until
        found = {}
        for choice in (NOTHING, *(each for each in self._menu if not weighed or each == self._hurry.choice)):
            left_out = plan.left_out(*self._offers(choice, view, costs, hurried))
            some = view_of(done(work, left_out), now, view.budget)
            given_up = len(hurried.difference(some.rows))
            found[choice] = self._prospect(choice, some, costs, hurried).without(given_up), some, left_out
        plain, *others = (prospect for prospect, _, _ in found.values())
        prospect, some, left_out = found[decide(plain, others, self._hurry.choice).choice]
        until = self._hurry.until if weighed else self._next()
        self._standing = self._hurry = _standing(prospect, some.rows, until)
        return self._rest.keep(work, left_out)

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """Trees as chosen for the rows of which something is expected, probes, and what is free."""
        if self._outdated(view.rows):
            calm = (choice for choice in self._menu if not choice.urgent_only)
            others = [self._prospect(choice, view, costs) for choice in calm]
            found = decide(self._prospect(NOTHING, view, costs), others, self._standing.choice)
            seldom = _SELDOM if found.choice == NOTHING else 1
            self._standing = self._calm = _standing(found, view.rows, self._next(seldom))
            self._probe_every = self._pause(view, costs)
        shape, gaining = self._standing.choice.shape, self._standing.gaining
        asking = not self._steps % min(_FREE_EVERY, 1 + len(view.rows))  # few rows' drafts take little time
        shapes: list[TreeShape | None] = []
        for row in view.rows:
            own = bounded(shape, row) if shape is not None and row in gaining else None
            if own is None and (asking or row in gaining or row in self._lucky):
                own = self._own_free(row)
            shapes.append(own)
        return self._probed(shapes, view.rows)

    def select(self, view: StepView, drafts: Drafts, shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """What promises need, and what pays."""
        chosen = super().select(view, drafts, shapes)
        self._lucky = frozenset(row for row, tree in zip(drafts.rows, chosen, strict=True) if tree.size)
        return chosen

    def learn(self, drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> None:
        """Forecasts follow what is drafted; once they know, some of it will do."""
        known = self._forecast.seen >= _KNOWN and not any(map(promises, drafts.rows))
        if known and self._steps % _SAMPLED:
            return
        for kind in (FREE, FULL):
            some = [i for i, shape in enumerate(shapes) if shape.free == (kind == FREE)]
            levels = [shapes[i].levels for i in some]
            if len(some) == len(shapes):
                self._forecast.observe(kind, drafts, conditional, levels)
            elif some:
                picked = np.isin(drafts.forest.owners, some)
                trees, rows = [drafts.trees[i] for i in some], [drafts.rows[i] for i in some]
                part = Drafts(trees, rows, drafts.sources[picked])
                self._forecast.observe(kind, part, conditional[picked], levels)

    def learn_nothing(self, rows: Sequence[Row], shapes: Sequence[TreeShape]) -> None:
        """Forecasts follow that there was nothing, too."""
        if self._forecast.seen >= _KNOWN and self._steps % _SAMPLED:
            return
        for kind in (FREE, FULL):
            some = [row for row, shape in zip(rows, shapes, strict=True) if shape.free == (kind == FREE)]
            if some:
                self._forecast.observe_nothing(kind, some)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        super().ended(row)
        self._forecast.forget(row)
        self._trials.forget(row)
        self._rest.forget(row)

    def _outdated(self, rows: Sequence[Row]) -> bool:
        """Whether the standing choice was made too long ago, or for others."""
        known = self._standing.rows
        return (
            self._steps >= self._standing.until or len(known.symmetric_difference(rows)) > len(known) // _FEW
        )

    def _next(self, seldom: int = 1) -> int:
        """Step in which a choice is weighed again."""
        return self._steps + min(seldom * EVERY, 1 + self._steps // 4)

    def _offers(
        self, choice: Choice, view: StepView, costs: Costs, hurried: frozenset[Row]
    ) -> tuple[Floats, float]:
        """What rows may expect of 0, 1, … drafted tokens, float64 ``[R, C + 1]``, and seconds of drafting."""
        shapes = self._shapes(choice, view.rows, hurried)
        gains = np.maximum(0.0, self._outlook(shapes, view.rows, hurried)[:, : self._n_max])
        offers = np.concatenate([np.ones((len(gains), 1)), gains], axis=1).cumsum(axis=1)
        return offers, self.draft_s(costs, [shape for shape in shapes if shape is not None])

    def _prospect(
        self, choice: Choice, view: StepView, costs: Costs, hurried: frozenset[Row] = frozenset()
    ) -> Prospect:
        """What a choice is expected to bring."""
        shapes = self._shapes(choice, view.rows, hurried)
        step_s, other_s = prices(costs, view, self.draft_s(costs, [s for s in shapes if s is not None]))
        table = CandidateTable(
            self._outlook(shapes, view.rows, hurried),
            Needs(self.needs(view.rows, view.now)),
            np.array([1 if shape is None else shape.levels for shape in shapes]),
            np.full(len(shapes), self._n_max),
            np.ones(len(shapes)),
        )
        paid = sum(shape.nodes for shape in shapes if shape is not None and not shape.free)
        price = joule_prices(self._power, len(view.rows), step_s, paid)
        return Prospect.of(choice, select(table, step_s, other_s, LEAST_GAIN, price))

    def _outlook(
        self, shapes: Sequence[TreeShape | None], rows: Sequence[Row], hurried: frozenset[Row]
    ) -> Floats:
        """Forecasts, those of rows in a hurry with the benefit of the doubt; float64 ``[R, C]``."""
        table = self._forecast.table(shapes, rows)
        for i, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
            if shape is not None and row in hurried and self._trials.hopes(row):
                table[i] = hoped(table[i], shape.levels)
        return table

    def _shapes(self, choice: Choice, rows: Sequence[Row], hurried: frozenset[Row]) -> list[TreeShape | None]:
        """What each row would be asked for."""
        shape = choice.shape
        if shape is None:
            return [self._own_free(row) for row in rows]
        return [
            (bounded(shape, row) if row in hurried or not choice.urgent_only else None) or self._own_free(row)
            for row in rows
        ]

    def _own_free(self, row: Row) -> TreeShape | None:
        return None if self._free is None else bounded(self._free, row)

    def _probed(self, shapes: list[TreeShape | None], rows: Sequence[Row]) -> list[TreeShape | None]:
        """Let rows without a full draft try a short one now and then."""
        self._since_probe += 1
        if self._since_probe >= self._probe_every:
            idle = [i for i, shape in enumerate(shapes) if shape is None or shape.free][:_PROBED]
            for i in idle:
                shapes[i] = bounded(_PROBE, rows[i]) or shapes[i]
                self._since_probe = 0
        return shapes

    def _pause(self, view: StepView, costs: Costs) -> int:
        """Steps between two probes, so that they take a small share of the time."""
        step_s = float(prices(costs, replace(view, budget=0), 0.0)[0][0])
        share = PROBE_SHARE * max(1.0, _KNOWN / (1.0 + self._forecast.seen))
        probe_s = costs.draft_tree_s(min(_PROBED, len(view.rows)), 1, _PROBE.levels)
        return math.ceil(probe_s / (share * step_s))


def _standing(prospect: Prospect, rows: Sequence[Row], until: int) -> _Standing:
    gaining = np.flatnonzero(prospect.selection.taken).tolist()
    return _Standing(prospect.choice, frozenset(rows), frozenset(rows[i] for i in gaining), until)
