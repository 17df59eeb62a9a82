"""Speculation where it pays, row by row and step by step, and nothing where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView, bounded, view_of
from specbatch.policy.costed import LEAST_GAIN, CostedPolicy, Instruments, prices
from specbatch.policy.forecast import FREE, FULL, Forecast
from specbatch.policy.forest import Drafts, Floats
from specbatch.policy.menu import NOTHING, Choice, Prospect, decide, menu
from specbatch.policy.rest import Rest
from specbatch.policy.selection import Candidates, select
from specbatch.rows import Row
from specbatch.step import Work

EVERY = 4
"""Steps after which the choice is weighed again although nothing has changed."""

PROBE_SHARE = 0.02
"""Share of the time that is spent on finding out whether drafting would pay."""

_PROBE = TreeShape(2, 1, 2)


class AutoPolicy(CostedPolicy):
    """AdaServe's promises and DSpark's prefix, on drafts of a shape that is chosen by predicted gain.

    Before anything is drafted, forecasts tell for each choice (nothing, chains, trees; for all rows or
    for those in a hurry) what the selection would be. The choice is kept until another one is clearly
    better. Rows of which the forecast selects nothing do not draft. Where nothing is drafted, a short
    draft now and then finds out whether that is still right. Rows that have time sit out for others.

    Args:
        largest: Bounds that no row's tree exceeds.
        instruments: Costs and calibration.
    """

    name = "auto"

    def __init__(self, largest: TreeShape, instruments: Instruments) -> None:
        super().__init__(largest, instruments)
        self._forecast = Forecast()
        self._free = replace(largest, free=True) if instruments.has_free else None
        self._menu = menu(largest)
        self._rest = Rest(self.lengths, instruments.min_progress)
        self._choice = NOTHING
        self._seen: tuple[int, int] = (0, 0)  # rows and urgent rows when the choice was made
        self._age = 0
        self._since_probe = 0

    @property
    def mode(self) -> str:
        """The present choice: ``off``, ``chain`` or ``tree``."""
        return self._choice.mode

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Rows with time sit out while others need a faster step."""
        view = view_of(work, now, self.largest.nodes * len(work))
        costs = self._costs
        if costs is None or not any(self.need(row, now).lines for row in view.rows):
            return list(work)
        return self._rest.keep(work, view, lambda some: self._best(some, costs, self._quick()).selection)

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """Trees as chosen for the rows of which something is expected, probes, and what is free."""
        step_s, _ = prices(costs, replace(view, budget=0), 0.0)
        urgent = sum(self.need(row, view.now).at(float(step_s[0])) > 1.0 for row in view.rows)
        seen = (len(view.rows), urgent)
        self._age += 1
        if seen != self._seen or self._age >= EVERY:
            prospect = self._best(view, costs, self._menu)
            self._choice, self._seen, self._age = prospect.choice, seen, 0
        else:
            prospect = self._prospect(self._choice, view, costs)
        shapes = self._shapes(prospect.choice, view, float(step_s[0]))
        hoped = prospect.selection.taken.tolist()
        shapes = [
            shape if taken else self._own_free(row)
            for shape, taken, row in zip(shapes, hoped, view.rows, strict=True)
        ]
        return self._probed(shapes, view, costs, prospect.selection.step_s)

    def learn(self, drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> None:
        """Forecasts follow what is drafted."""
        for kind in (FREE, FULL):
            some = [i for i, shape in enumerate(shapes) if shape.free == (kind == FREE)]
            if len(some) == len(shapes):
                self._forecast.observe(kind, drafts, conditional, [shape.levels for shape in shapes])
            elif some:
                picked = np.isin(drafts.forest.owners, some)
                part = Drafts(
                    [drafts.trees[i] for i in some], [drafts.rows[i] for i in some], drafts.sources[picked]
                )
                levels = [shapes[i].levels for i in some]
                self._forecast.observe(kind, part, conditional[picked], levels)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        super().ended(row)
        self._forecast.forget(row)
        self._rest.forget(row)

    def _best(self, view: StepView, costs: Costs, choices: Sequence[Choice]) -> Prospect:
        """The choice to make, others than nothing among these."""
        plain = self._prospect(NOTHING, view, costs)
        others = [self._prospect(choice, view, costs) for choice in choices]
        return decide(plain, others, self._choice)

    def _quick(self) -> tuple[Choice, ...]:
        """Few choices, for predictions that are made many times a step."""
        trees = [choice for choice in self._menu if choice.urgent_only]
        return tuple(dict.fromkeys((self._choice, trees[0], trees[-1])))

    def _prospect(self, choice: Choice, view: StepView, costs: Costs) -> Prospect:
        """What a choice is expected to bring."""
        plain_s = prices(costs, replace(view, budget=0), 0.0)[0][0]
        shapes = self._shapes(choice, view, float(plain_s))
        needs = [self.need(row, view.now) for row in view.rows]
        free = self._forecast.paths(FREE, [s if s and s.free else None for s in shapes], view.rows)
        full = self._forecast.paths(FULL, [s if s and not s.free else None for s in shapes], view.rows)
        candidates = [
            Candidates(
                f if shape is None or shape.free else g, need, shape.levels if shape else 1, self._n_max
            )
            for f, g, need, shape in zip(free, full, needs, shapes, strict=True)
        ]
        draft_s = self.draft_s(costs, [shape for shape in shapes if shape is not None])
        step_s, other_s = prices(costs, view, draft_s)
        return Prospect.of(choice, select(candidates, step_s, other_s, LEAST_GAIN))

    def _shapes(self, choice: Choice, view: StepView, plain_s: float) -> list[TreeShape | None]:
        """What each row would be asked for."""
        shapes = []
        for row in view.rows:
            wants = choice.shape is not None
            if wants and choice.urgent_only:
                wants = self.need(row, view.now).at(plain_s) > 1.0
            shape = bounded(choice.shape, row) if wants and choice.shape else None
            shapes.append(shape or self._own_free(row))
        return shapes

    def _own_free(self, row: Row) -> TreeShape | None:
        return None if self._free is None else bounded(self._free, row)

    def _probed(
        self, shapes: list[TreeShape | None], view: StepView, costs: Costs, step_s: float
    ) -> list[TreeShape | None]:
        """Let rows without a full draft try a short one, as often as a small share of the time allows."""
        idle = [i for i, shape in enumerate(shapes) if shape is None or shape.free]
        self._since_probe += 1
        if not idle:
            return shapes
        every = math.ceil(costs.draft_tree_s(len(idle), 1, _PROBE.levels) / (PROBE_SHARE * step_s))
        if self._since_probe >= every:
            self._since_probe = 0
            for i in idle:
                shapes[i] = bounded(_PROBE, view.rows[i]) or shapes[i]
        return shapes
