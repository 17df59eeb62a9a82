"""Short drafts now and then where nothing is drafted: they find out whether that is still right."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from specbatch.draft.base import TreeShape
from specbatch.draft.interest import WINDOW
from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView, bounded
from specbatch.policy.costed import prices
from specbatch.rows import Row

_SHARE = 0.012
"""Share of the time that is spent on it."""

_REMINDER = 0.1
"""So much of it once many drafts have been seen."""

KNOWN = 6
"""Drafts that tell whether drafting pays; after fewer, more time is spent on finding out."""

_ROWS = 3
"""Rows that find it out for all: the first draft for a row goes through all of its prompt."""

_LEVELS = 2


class Probes:
    """When the next one is due.

    Args:
        free_levels: Depth of chains that take no pass of a draft model; 0 where there are none.
    """

    def __init__(self, free_levels: int = 0) -> None:
        self._shape = TreeShape(_LEVELS, 1, _LEVELS, free_levels=free_levels)
        self._step = self._last = 0
        self._next = 1

    def among(
        self,
        shapes: Sequence[TreeShape | None],
        view: StepView,
        costs: Costs,
        seen: float,
        spared: Collection[Row] = (),
    ) -> list[TreeShape | None]:
        """What rows are asked for in this step, with a short draft for some of those without a full one.

        Args:
            shapes: What the policy asks of each row.
            view: The step.
            costs: Predicted times.
            seen: Drafts that are known.
            spared: Rows that have no time for it.
        """
        self._step += 1
        asked = list(shapes)
        if self._step < self._next:
            return asked
        places = [
            i
            for i, shape in enumerate(shapes)
            if (shape is None or shape.free) and view.rows[i] not in spared
        ][:_ROWS]
        if places:
            for i in places:
                asked[i] = bounded(self._shape, view.rows[i]) or shapes[i]
            self._next = self._step + self._pause(len(places), view, costs, seen)
            self._last = self._step
        return asked

    def _pause(self, rows: int, view: StepView, costs: Costs, seen: float) -> int:
        """Steps up to the next one, so that this one has taken a small share of the time.

        A draft model takes in first what a row has written since it drafted last, up to a window of it.
        That is not held against the first few: without them nothing is known.
        """
        step_s = float(prices(costs, replace(view, budget=0), 0.0)[0][0])
        share = _SHARE * max(_REMINDER, KNOWN / (1.0 + seen))
        unseen = rows * min(WINDOW, self._step - self._last) if seen >= KNOWN else 0
        probe_s = costs.draft_tree_s(rows, 1, _LEVELS) + costs.draft_tree_s(unseen, 1, 1)
        return math.ceil(probe_s / (share * step_s))
