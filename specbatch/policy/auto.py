"""Speculation where it pays, row by row and step by step, and nothing where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import Costs
from specbatch.policy.asking import Asking
from specbatch.policy.base import StepView, bounded, view_of
from specbatch.policy.candidates import CandidateTable
from specbatch.policy.costed import LEAST_GAIN, CostedPolicy, Instruments, joule_prices, prices
from specbatch.policy.forecast import FREE, FULL, Forecast
from specbatch.policy.forest import Drafts, Floats
from specbatch.policy.menu import NOTHING, Choice, Prospect, decide, menu, relief_of
from specbatch.policy.need import Needs, promises
from specbatch.policy.probes import KNOWN, Probes
from specbatch.policy.rest import Plan, Rest, done
from specbatch.policy.review import EVERY, Review
from specbatch.policy.selection import select
from specbatch.policy.standing import CALM, Crowd, Seen, Standing, crowd_of, differ, standing_of
from specbatch.policy.starts import held_back
from specbatch.policy.trial import Trials, hoped
from specbatch.rows import Row
from specbatch.tree import TokenTree
from specbatch.work import Work

_FIRST = 4
"""Steps after which the first choice for promises of a run is weighed again."""

_SAMPLED = 4
"""Of so many steps one is learnt from when a few drafts have been seen."""


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
        free_levels = min(largest.levels, largest.nodes) if instruments.has_free else 0
        self._menu = menu(largest, free_levels)
        self._rest = Rest(self.lengths, instruments.min_progress)
        self._calm = self._hurry = self._standing = Standing()
        self._hurried: frozenset[Row] = frozenset()  # rows in a hurry in this step
        self._promised: frozenset[Row] = frozenset()  # rows with promises when the choice was last weighed
        self._lucky = False  # the last drafts had something worth verifying
        self._probes = Probes(free_levels)
        self._review = Review()
        self._steps = 0
        self._asking = Asking()

    @property
    def mode(self) -> str:
        """The present choice: ``off``, ``chain`` or ``tree``."""
        return self._standing.choice.mode

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Rows with time sit out while others need a faster step."""
        self._steps += 1
        self._trials.step()
        self._standing, self._hurried, costs = self._calm, frozenset[Row](), self._costs
        work = work if costs is None else done(work, held_back(work, now))
        view = view_of(work, now, self.largest.nodes * len(work))
        if costs is None or not any(map(promises, view.rows)):
            return self._rest.keep(work, {})
        plan = self._rest.plan(work, view, costs, self.needs([item.row for item in work], now))
        crowd = crowd_of(plan, view.rows)
        if not crowd.hurried:
            return self._rest.keep(work, {})
        if self._steps >= self._hurry.until or differ(self._promised, filter(promises, view.rows)):
            self._promised = frozenset(filter(promises, view.rows))
            left_out = self._weigh(plan, work, view, crowd)
        else:
            left_out = self._stand_by(plan, work, view, crowd)
        self._standing, self._hurried = self._hurry, crowd.hurried
        return self._rest.keep(work, left_out)

    def _weigh(self, plan: Plan, work: Sequence[Work], view: StepView, crowd: Crowd) -> dict[int, int]:
        """Take the choice that keeps most promises; who sits out for it.

        While nothing is drafted and rest alone is enough, others are looked at now and then only. While it
        is not, drafts are for those in a hurry.
        """
        look = partial(self._seen, plan, work, view, crowd)
        plain, until = look(NOTHING), self._hurry.until
        lacking = plain.prospect.lacking > relief_of(len(crowd.hurried))
        others = []
        if lacking or self._steps >= until or self._hurry.choice != NOTHING:
            others = [look(choice) for choice in self._menu if choice.urgent_only is lacking]
            until = self._next()
        return self._take(plain, others, crowd, until)

    def _stand_by(self, plan: Plan, work: Sequence[Work], view: StepView, crowd: Crowd) -> dict[int, int]:
        """Who sits out for the choice that stands, or for nothing where that has become enough."""
        choice = self._hurry.choice
        if choice == NOTHING:
            left_out, some = self._without(choice, plan, work, view, crowd)
            self._hurry = replace(self._hurry, rows=frozenset(some.rows))
            return left_out
        plain, present = (self._seen(plan, work, view, crowd, each) for each in (NOTHING, choice))
        if plain.prospect.lacking <= relief_of(len(crowd.hurried)):
            return self._take(plain, [present], crowd, self._hurry.until)
        self._hurry = standing_of(present.prospect, present.rows, self._hurry.until)
        return present.left_out

    def _take(self, plain: Seen, others: Sequence[Seen], crowd: Crowd, until: int) -> dict[int, int]:
        """The best of some choices stands from now on; who sits out for it."""
        prospects = [each.prospect for each in others]
        best = decide(plain.prospect, prospects, self._hurry.choice, len(crowd.hurried))
        taken = next(each for each in (plain, *others) if each.prospect is best)
        self._hurry = standing_of(best, taken.rows, until)
        return taken.left_out

    def _seen(self, plan: Plan, work: Sequence[Work], view: StepView, crowd: Crowd, choice: Choice) -> Seen:
        """A choice, looked at."""
        left_out, some = self._without(choice, plan, work, view, crowd)
        prospect = self._prospect(choice, some, crowd)
        return Seen(prospect.without(len(crowd.hurried.difference(some.rows))), some.rows, left_out)

    def _without(
        self, choice: Choice, plan: Plan, work: Sequence[Work], view: StepView, crowd: Crowd
    ) -> tuple[dict[int, int], StepView]:
        """Who would sit out for a choice, and the step without them."""
        left_out = plan.left_out(*self._offers(choice, view, crowd))
        return left_out, view_of(done(work, left_out), view.now, view.budget)

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """Trees as chosen for the rows of which something is expected, probes, and what is free."""
        calmly = not self._hurried  # what promises ask for has been weighed by now
        if calmly and self._review.is_due(self._steps, self._forecast.total, self._standing, view.rows):
            calm = (choice for choice in self._menu if not choice.urgent_only)
            others = [self._prospect(choice, view, CALM) for choice in calm]
            found = decide(self._prospect(NOTHING, view, CALM), others, self._standing.choice)
            until = self._review.found(self._steps, self._forecast.total, found.choice, view.rows)
            self._standing = self._calm = standing_of(found, view.rows, until)
        shape, gaining = self._standing.choice.shape, self._standing.gaining
        asking = self._asking.is_due(self._steps, self._asking_share(view, costs))
        shapes: list[TreeShape | None] = []
        for row in view.rows:
            own = self._stopping.of(shape, row) if shape is not None and row in gaining else None
            if own is None and (asking or row in gaining):
                own = self._own_free(row)
            shapes.append(own)
        return self._probes.among(shapes, view, costs, self._forecast.seen, self._hurried)

    def _asking_share(self, view: StepView, costs: Costs) -> float:
        """What asking for free drafts takes, as a share of a step without."""
        rows = len(view.rows)
        context = sum(row.committed for row in view.rows) / rows
        return costs.asking_s / (costs.around_s + costs.verify_s(rows, context, rows))

    def select(self, view: StepView, drafts: Drafts, shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """What promises need, and what pays."""
        chosen = super().select(view, drafts, shapes)
        self._lucky = any(tree.size for tree in chosen)
        if any(shape.free for shape in shapes):
            decided = next(iter(self._decisions.values()), None)
            self._asking.found(decided.gain if decided is not None and self._lucky else 0.0)
        return chosen

    def learn(self, drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> None:
        """Forecasts follow what is drafted; once they know, some of it will do."""
        known = self._forecast.seen >= KNOWN and not any(map(promises, drafts.rows))
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
        if self._forecast.seen >= KNOWN and self._steps % _SAMPLED:
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

    def _next(self) -> int:
        """Step in which a choice for promises is weighed again."""
        return self._steps + min(EVERY, _FIRST + self._steps // 4)

    def _offers(self, choice: Choice, view: StepView, crowd: Crowd) -> tuple[Floats, float]:
        """What rows may expect of 0, 1, … drafted tokens, float64 ``[R, C + 1]``, and seconds of drafting."""
        if choice == NOTHING and not (self._lucky or crowd.stuck):  # what is free brought nothing lately
            return np.ones((len(view.rows), 1)), 0.0
        shapes = self._shapes(choice, view.rows, crowd)
        gains = np.maximum(0.0, self._outlook(shapes, view.rows, crowd)[:, : self._n_max])
        offers = np.concatenate([np.ones((len(gains), 1)), gains], axis=1).cumsum(axis=1)
        return offers, self._drafting_s(shapes)

    def _prospect(self, choice: Choice, view: StepView, crowd: Crowd) -> Prospect:
        """What a choice is expected to bring."""
        assert self._costs is not None, "nothing is weighed without costs"
        shapes = self._shapes(choice, view.rows, crowd)
        step_s, other_s = prices(self._costs, view, self._drafting_s(shapes))
        table = CandidateTable(
            self._outlook(shapes, view.rows, crowd),
            Needs(self.needs(view.rows, view.now)),
            np.array([1 if shape is None else shape.levels for shape in shapes]),
            np.full(len(shapes), self._n_max),
            np.ones(len(shapes)),
        )
        paid = sum(shape.nodes for shape in shapes if shape is not None and not shape.free)
        price = joule_prices(self._power, len(view.rows), step_s, paid)
        return Prospect.of(choice, select(table, step_s, other_s, LEAST_GAIN, price))

    def _drafting_s(self, shapes: Sequence[TreeShape | None]) -> float:
        """Seconds that drafting these trees takes together."""
        assert self._costs is not None, "nothing is weighed without costs"
        return self.draft_s(self._costs, [shape for shape in shapes if shape is not None])

    def _outlook(self, shapes: Sequence[TreeShape | None], rows: Sequence[Row], crowd: Crowd) -> Floats:
        """Forecasts, those of rows that only drafts can help with the benefit of the doubt; ``[R, C]``."""
        table = self._forecast.table(shapes, rows)
        if not crowd.stuck:
            return table
        for i, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
            if shape is not None and row in crowd.stuck and self._trials.hopes(row):
                table[i] = hoped(table[i], shape.levels)
        return table

    def _shapes(self, choice: Choice, rows: Sequence[Row], crowd: Crowd) -> list[TreeShape | None]:
        """What each row would be asked for."""
        shape = choice.shape
        if shape is None:
            return [self._own_free(row) for row in rows]
        return [
            (self._stopping.of(shape, row) if row in crowd.hurried or not choice.urgent_only else None)
            or self._own_free(row)
            for row in rows
        ]

    def _own_free(self, row: Row) -> TreeShape | None:
        return None if self._free is None else bounded(self._free, row)
