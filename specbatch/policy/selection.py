"""Which drafted tokens a pass verifies: first what promises need, then what pays (AdaServe + DSpark).

Maximise Σ over rows of Σ f, f(v) being the probability that the whole path to node v is accepted,
subject to a budget of tokens and, per row, Σ f ≥ A (AdaServe, Li et al. 2026, section 4); and of all
numbers of tokens take the one with the most expected tokens per second on a measured cost table
(DSpark).

f falls along every path, so the best n nodes of a row hang together: a prefix of its nodes by f. Therefore:

* SLO phase: the prefix that reaches A is the smallest set that does, and part of every larger best set. If
  all these fit into the budget, the selection of each size has the highest Σ f that gives every row its A.
* Throughput phase: *all* sizes within the budget are compared, so that what is returned has the most
  expected tokens per second of all that give every row its A, whatever the cost table.
* The throughput phase makes no step so long that a row loses what it needs, if that can be helped.
* If the prefixes do not fit, rows are served by falling A; one that the rest of the budget cannot bring to
  its A is passed over: a sensible set of rows is served, not the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbatch.policy.candidates import (
    ROUNDING,
    Bools,
    Candidates,
    CandidateTable,
    Floats,
    Integers,
    Selection,
)

_FEW = 64
"""Nodes up to which plain numbers are quicker than arrays."""


def select(
    rows: Sequence[Candidates] | CandidateTable,
    step_s: Floats,
    other_s: float = 0.0,
    least_gain: float = 0.0,
    price: Floats | None = None,
) -> Selection:
    """Select twice: A is taken at the length of the shortest step, then at the one that follows from it.

    Where what pays makes the step too long for somebody's promises, it is bounded.

    Args:
        rows: At least one.
        step_s: Seconds of the step with 0, 1, … drafted tokens, drafting included; its length less one
            is the budget.
        other_s: More seconds of the same step (prompts of others): for needs, not for what pays.
        least_gain: Share by which tokens per second must rise for the throughput phase to add anything.
        price: What tokens are bought with instead of ``step_s``: joules of the same steps.
    """
    if _few_and_unhurried(rows):
        return select_plain(rows, step_s, other_s, least_gain, price)
    return select_arrays(rows, step_s, other_s, least_gain, price)


def select_arrays(
    rows: Sequence[Candidates] | CandidateTable,
    step_s: Floats,
    other_s: float = 0.0,
    least_gain: float = 0.0,
    price: Floats | None = None,
) -> Selection:
    """As :func:`select`, for any rows."""
    table = rows if isinstance(rows, CandidateTable) else CandidateTable.of(rows)
    problem = _Problem(table, (step_s, step_s if price is None else price), (other_s, least_gain))
    found = problem.twice()
    failing = 0 if table.needs.none else problem.failing(found)
    if failing:
        needs = problem.twice(0.0)
        if problem.failing(needs) < failing:
            longest = problem.longest(needs)
            found = problem.solve(longest, longest)
    return problem.selection(found)


def _few_and_unhurried(rows: Sequence[Candidates] | CandidateTable) -> bool:
    """Whether nobody asks for anything and there is little to choose from, as usual with few rows."""
    if isinstance(rows, CandidateTable):
        return rows.needs.none and rows.f.size <= _FEW
    if sum(len(row.f) - 1 for row in rows) > _FEW:
        return False
    return not any(row.need.lines or row.need.lost for row in rows)


def select_plain(
    rows: Sequence[Candidates] | CandidateTable,
    step_s: Floats,
    other_s: float = 0.0,
    least_gain: float = 0.0,
    price: Floats | None = None,
) -> Selection:
    """Twin of :func:`select_arrays` in plain numbers, for rows without needs: the throughput phase alone."""
    if isinstance(rows, CandidateTable):
        nodes, weights, n_max = rows.nodes, rows.weights.tolist(), rows.n_max.tolist()
    else:
        nodes = [row.f[1:].tolist() for row in rows]
        weights, n_max = [row.weight for row in rows], [row.n_max for row in rows]
    orders = [sorted(range(len(f)), key=f.__getitem__, reverse=True) for f in nodes]  # ties: parents first
    falling = [[f[node] for node in order] for f, order in zip(nodes, orders, strict=True)]
    worth = sorted((-f * weights[r], r, k) for r, row in enumerate(falling) for k, f in enumerate(row))
    count, rates = _best_count(worth, sum(weights), (step_s if price is None else price).tolist(), least_gain)
    taken = [0] * len(nodes)
    for _, row, _ in worth[:count]:
        taken[row] += 1
    return _unhurried(orders, falling, (taken, n_max), (float(step_s[count]) + other_s, *rates))


def _best_count(
    worth: Sequence[tuple[float, int, int]], base: float, price: Sequence[float], least_gain: float
) -> tuple[int, tuple[float, float]]:
    """How many of the best nodes bring most tokens for their price; tokens per price with and without."""
    tokens, plain = base, base / price[0]
    count, best = 0, plain
    for number, ((loss, _, _), cost) in enumerate(zip(worth, price[1:], strict=False), start=1):
        tokens -= loss
        if tokens / cost > best:
            count, best = number, tokens / cost
    return (0, (plain, plain)) if best < plain * (1.0 + least_gain) else (count, (best, plain))


def _unhurried(
    orders: Sequence[Sequence[int]],
    falling: Sequence[Sequence[float]],
    counts: tuple[Sequence[int], Sequence[int]],
    totals: tuple[float, float, float],
) -> Selection:
    """A selection of rows without needs, from plain numbers."""
    rows, width = len(orders), max(map(len, orders))
    taken, n_max = counts
    none = np.zeros(rows, dtype=np.bool_)
    return Selection(
        order=np.array([[*order, *range(len(order), width)] for order in orders], dtype=np.int64) + 1,
        taken=np.array(taken, dtype=np.int64),
        slo_nodes=np.zeros(rows, dtype=np.int64),
        needed=np.ones(rows),
        expected=np.array([1.0 + sum(f[:n]) for f, n in zip(falling, taken, strict=True)]),
        reach=np.array([1.0 + sum(f[:n]) for f, n in zip(falling, n_max, strict=True)]),
        hopeless=none,
        unfunded=none,
        step_s=totals[0],
        rate=totals[1],
        base_rate=totals[2],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Solution:
    """One round, as :class:`Selection`."""

    taken: Integers
    slo_nodes: Integers
    needed: Floats
    hopeless: Bools
    unfunded: Bools
    step_s: float
    rates: tuple[float, float]


class _Problem:
    """The rows' nodes by falling f, side by side."""

    def __init__(
        self, table: CandidateTable, prices: tuple[Floats, Floats], options: tuple[float, float]
    ) -> None:
        (self._step_s, self._price), (self._other_s, self._least_gain) = prices, options
        self._needs, self._weights = table.needs, table.weights
        real: Bools = table.f >= 0.0
        order = np.argsort(-table.f, axis=1, kind="stable")  # equal ones by index: parents first
        self._order: Integers = order + 1
        f = np.maximum(np.take_along_axis(table.f, order, axis=1), 0.0)
        self._sums: Floats = np.empty((f.shape[0], f.shape[1] + 1))
        self._sums[:, 0], self._sums[:, 1:] = 1.0, f
        self._sums.cumsum(axis=1, out=self._sums)
        worth = (f * self._weights[:, None])[real]
        best = np.argsort(-worth, kind="stable")
        self._worth: Floats = worth[best]  # of all nodes, falling
        self._owner, self._place = (index[best] for index in np.nonzero(real))
        self._most = table.levels + 1.0
        self._reach = _gather(self._sums, np.minimum(real.sum(axis=1), table.n_max))

    def twice(self, limit_s: float = math.inf) -> _Solution:
        """A at the shortest step, and again at the one that followed; the throughput phase is bounded."""
        first = self.solve(float(self._step_s[0]) + self._other_s, limit_s)
        return first if self._needs.none else self.solve(first.step_s, limit_s)

    def solve(self, assumed_s: float, limit_s: float) -> _Solution:
        """Both phases.

        Args:
            assumed_s: Length of the step at which needs are taken.
            limit_s: Length that the throughput phase does not exceed.
        """
        budget = len(self._step_s) - 1
        needed = self._needs.at(assumed_s)
        if self._needs.none:
            slo_nodes, hopeless = np.zeros(len(needed), dtype=np.int64), self._needs.lost
            unfunded = hopeless
        else:
            wanted, hopeless = self._wanted(needed, assumed_s)
            slo_nodes, unfunded = _fund(needed, wanted, budget)
        used = int(slo_nodes.sum())
        base = float(_gather(self._sums, slo_nodes) @ self._weights)
        taken, length, rate = slo_nodes, float(self._step_s[used]), base / float(self._price[used])
        both = rate, rate
        if length + self._other_s < limit_s and used < budget:
            taken, length, rate = self._add(slo_nodes, base, limit_s - self._other_s)
            both = rate, both[1]
        length += self._other_s
        return _Solution(taken, slo_nodes, needed, hopeless, unfunded, length, both)

    def failing(self, solution: _Solution) -> int:
        """How many rows may expect less than they need at the length that the step has in the end."""
        short = _gather(self._sums, solution.taken) < self._needs.at(solution.step_s) - ROUNDING
        return int((short | solution.hopeless).sum())

    def _add(self, slo_nodes: Integers, base: float, limit_s: float) -> tuple[Integers, float, float]:
        """Throughput phase: nodes of each row, seconds of the step, expected tokens per second."""
        used = int(slo_nodes.sum())
        left = (self._place >= slo_nodes[self._owner]).nonzero()[0][: len(self._step_s) - 1 - used]
        tokens = np.empty(len(left) + 1)
        tokens[0], tokens[1:] = base, self._worth[left]
        step_s = self._step_s[used : used + len(tokens)]
        rates = tokens.cumsum() / self._price[used : used + len(tokens)]
        rates[1:][step_s[1:] > limit_s] = 0.0
        count = int(rates.argmax())
        if rates[count] < rates[0] * (1.0 + self._least_gain):
            count = 0
        taken = slo_nodes + np.bincount(self._owner[left[:count]], minlength=len(slo_nodes))
        return taken, float(step_s[count]), float(rates[count])

    def longest(self, solution: _Solution) -> float:
        """Length of the step up to which every row that gets what it needs from a selection still does."""
        expected = _gather(self._sums, solution.taken)
        served = ~solution.hopeless & (expected >= self._needs.at(solution.step_s) - ROUNDING)
        lengths = self._needs.longest(expected)[served]
        return max(solution.step_s, float(lengths.min(initial=math.inf)))

    def selection(self, solution: _Solution) -> Selection:
        """What is told about a round."""
        return Selection(
            order=self._order,
            taken=solution.taken,
            slo_nodes=solution.slo_nodes,
            needed=solution.needed,
            expected=_gather(self._sums, solution.taken),
            reach=self._reach,
            hopeless=solution.hopeless,
            unfunded=solution.unfunded,
            step_s=solution.step_s,
            rate=solution.rates[0],
            base_rate=solution.rates[1],
        )

    def _wanted(self, needed: Floats, assumed_s: float) -> tuple[Integers, Bools]:
        """Nodes that each row's need asks for, and which rows are past help."""
        least = self._needs.least_at(assumed_s)
        hopeless = self._needs.lost | (self._reach < np.minimum(least, self._most) - ROUNDING)
        target = np.minimum(np.minimum(needed, self._most), self._reach)
        target[hopeless] = 1.0
        return (self._sums < target[:, None] - ROUNDING).sum(axis=1), hopeless


def _fund(needed: Floats, wanted: Integers, budget: int) -> tuple[Integers, Bools]:
    """Hand out the budget by falling need: nodes of each row, and who got none of what it asked for."""
    taken, unfunded = wanted.copy(), np.zeros(len(wanted), dtype=np.bool_)
    if taken.sum() <= budget:
        return taken, unfunded
    for i in np.argsort(-needed, kind="stable").tolist():
        if taken[i] > budget:
            taken[i], unfunded[i] = 0, True
        budget -= int(taken[i])
    return taken, unfunded


def _gather(table: Floats, columns: Integers) -> Floats:
    """One entry of each row."""
    entries: Floats = table.ravel()[np.arange(0, table.size, table.shape[1]) + columns]
    return entries
