"""Two-phase selection: the worked example, and optimality against brute force on small instances."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
import pytest

from specbatch.policy.candidates import Candidates, Floats, Selection
from specbatch.policy.need import NONE, Need
from specbatch.policy.selection import select

FLAT = 1.0


def constant(needed: float) -> Need:
    """The same at every length of the step."""
    return Need(((needed, 0.0),))


# Two trees of depth 3 and width 2, and what two rows need (the root's own token included).
EXAMPLE = [
    Candidates(np.array([1.0, 0.7, 0.2, 0.42, 0.21, 0.294, 0.126]), constant(1.6), levels=3),
    Candidates(np.array([1.0, 0.5, 0.4, 0.35, 0.24, 0.14, 0.14]), constant(1.8), levels=3),
]


def chosen(selection: Selection) -> list[list[int]]:
    return [selection.nodes(row).tolist() for row in range(len(selection.taken))]


def test_worked_example() -> None:
    """Eight tokens, two of them roots: needs take three nodes, what pays most takes the other three."""
    needs = select(EXAMPLE, np.array([1.0, 1.0, 1.0, 1.0]))
    assert chosen(needs) == [[1], [1, 2]]
    assert needs.total == 3
    both = select(EXAMPLE, np.full(7, FLAT))
    assert chosen(both) == [[1, 3, 5], [1, 2, 3]]
    assert both.slo_nodes.tolist() == [1, 2]
    assert both.expected.tolist() == pytest.approx([2.414, 2.25])
    assert not both.short.any()


def test_what_does_not_pay_is_left_out() -> None:
    free = [Candidates(row.f) for row in EXAMPLE]
    assert select(free, 2.0 + np.arange(7.0)).total == 0
    assert chosen(select(free, 4.0 + np.arange(7.0))) == [[1], []]
    assert select(free, np.full(7, FLAT)).total == 6


def test_the_end_of_a_stair_is_found_beyond_its_first_step() -> None:
    """One more token costs more than it brings; six more cost no more than that one."""
    free = [Candidates(row.f) for row in EXAMPLE]
    stairs = np.array([1.0, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9])
    assert select(free, stairs[:2]).total == 0
    assert select(free, stairs).total == 6


def test_a_gain_that_is_too_small_changes_nothing() -> None:
    rows = [Candidates(np.array([1.0, 0.5]))]
    step_s = np.array([1.0, 1.45])
    assert select(rows, step_s, least_gain=0.03).total == 1
    assert select(rows, step_s, least_gain=0.04).total == 0
    needy = [Candidates(np.array([1.0, 0.5]), constant(1.4))]
    assert select(needy, step_s, least_gain=0.04).total == 1


def test_a_hopeless_row_leaves_the_budget_to_the_others() -> None:
    greedy = Candidates(EXAMPLE[0].f, constant(3.5), levels=3)
    found = select([greedy, EXAMPLE[1]], np.array([1.0, 9.0, 9.0]))
    assert found.hopeless.tolist() == [True, False]
    assert chosen(found) == [[], [1, 2]]
    lost = Candidates(EXAMPLE[0].f, Need(lost=True), levels=3)
    assert chosen(select([lost, EXAMPLE[1]], np.array([1.0, 9.0, 9.0]))) == [[], [1, 2]]


def test_arrears_that_can_still_be_made_up_get_all_there_is() -> None:
    behind = Candidates(EXAMPLE[0].f, Need(((3.5, 0.0),), least=((1.5, 0.0),)), levels=3, n_max=4)
    found = select([behind], 1.0 + 9.0 * np.arange(6.0))
    assert not found.hopeless.any()
    assert chosen(found) == [[1, 3, 4, 5]]
    assert found.short.tolist() == [True]


def test_nothing_brings_a_row_more_than_its_depth_and_one() -> None:
    """A need above d + 1 is one of d + 1."""
    sure = Candidates(np.ones(3), constant(9.0), levels=2)
    found = select([sure], np.array([1.0, 9.0, 9.0]))
    assert not found.hopeless.any()
    assert chosen(found) == [[1, 2]]


def test_a_row_that_does_not_fit_is_passed_over() -> None:
    large = Candidates(np.array([1.0, 0.9, 0.8, 0.7]), constant(3.0), levels=3)
    small = Candidates(np.array([1.0, 0.9, 0.8, 0.7]), constant(1.5), levels=3)
    found = select([large, small], np.array([1.0, 9.0, 20.0]))
    assert found.unfunded.tolist() == [True, False]
    assert chosen(found) == [[], [1]]


def test_needs_are_taken_at_the_length_of_the_step_that_follows_from_them() -> None:
    """At one second 1.5 tokens are needed; verifying them takes two seconds, in which three are."""
    row = Candidates(np.array([1.0, 0.9, 0.9, 0.9]), Need(((0.0, 1.5),)), levels=3)
    found = select([row], np.array([1.0, 2.0, 2.0, 2.0]))
    assert found.needed.tolist() == [3.0]
    assert chosen(found) == [[1, 2, 3]]


def test_time_that_others_take_counts_for_needs_and_not_for_what_pays() -> None:
    row = Candidates(np.array([1.0, 0.4]), Need(((0.0, 0.58),)), levels=1)
    slow = np.array([1.0, 1.5])
    assert select([row], slow).total == 0
    found = select([row], slow, other_s=0.9)
    assert (found.total, found.step_s) == (1, 2.4)
    assert select([Candidates(row.f)], slow, other_s=0.9).total == 0


def test_what_pays_takes_nobody_what_it_needs() -> None:
    """The other row's tokens are worth three times the time, but then one token would not be enough."""
    needy, eager = Candidates(np.ones(1), Need(((0.0, 0.9),))), Candidates(np.ones(9), levels=8)
    step_s = np.array([1.0, 1.2, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    assert select([Candidates(np.ones(1)), eager], step_s).total == 8
    found = select([needy, eager], step_s)
    assert found.total == 0
    assert not found.hopeless.any()
    assert not found.short.any()
    longer = select([Candidates(np.ones(1), Need(((0.0, 0.5),))), eager], step_s)
    assert (longer.total, longer.step_s) == (1, 1.2)
    assert not longer.short.any()


def test_weights_decide_between_equals() -> None:
    f = np.array([1.0, 0.5])
    found = select([Candidates(f), Candidates(f, weight=2.0)], np.array([1.0, 1.0]))
    assert chosen(found) == [[], [1]]


def test_rows_without_candidates_count_all_the_same() -> None:
    found = select([Candidates(np.ones(1))] * 3, np.array([2.0, 2.0]))
    assert (found.total, found.rate, found.expected.tolist()) == (0, 1.5, [1.0, 1.0, 1.0])


@dataclass(frozen=True)
class Instance:
    """A few small trees; all probabilities and times are binary fractions, so that sums are exact."""

    parents: list[list[int]]
    rows: list[Candidates]
    step_s: Floats


def instance(rng: np.random.Generator) -> Instance:
    count = int(rng.integers(1, 4))
    parents, rows = [], []
    for _ in range(count):
        above, f = [-1], [1.0]
        for _ in range(rng.integers(0, 6 if count < 3 else 4)):
            above.append(int(rng.integers(0, len(f))))
            f.append(f[above[-1]] * float(rng.choice([1.0, 0.75, 0.5, 0.25, 0.0])))
        needed = float(rng.choice([0.0, 1.25, 1.5, 1.75, 2.0, 3.5]))
        levels, n_max = int(rng.integers(1, 5)), int(rng.integers(0, 7))
        weight = float(rng.choice([1.0, 1.0, 2.0]))
        need = constant(needed) if needed else NONE
        rows.append(Candidates(np.array(f), need, levels, n_max, weight))
        parents.append(above)
    stairs = np.cumsum(rng.choice([0.0, 0.0, 0.25, 1.0, 3.0], size=int(rng.integers(1, 10))))
    return Instance(parents, rows, 1.0 + stairs)


def closed_sets(parents: list[int]) -> list[tuple[int, ...]]:
    """All sets of nodes below the root that hold every member's parent."""
    nodes = range(1, len(parents))
    return [
        some
        for size in range(len(parents))
        for some in itertools.combinations(nodes, size)
        if all(parents[node] in (0, *some) for node in some)
    ]


def value(row: Candidates, some: tuple[int, ...]) -> float:
    return 1.0 + float(row.f[list(some)].sum())


def target(row: Candidates, sets: list[tuple[int, ...]]) -> tuple[float, bool]:
    """What the SLO phase must bring a row to, and whether it gave the row up."""
    wanted = min(row.need.at(1.0), row.levels + 1.0)
    reach = max(value(row, some) for some in sets if len(some) <= row.n_max)
    return (1.0, True) if reach < wanted else (wanted, False)


def best_rate(case: Instance, per_row: list[list[tuple[int, ...]]]) -> float:
    """Highest weighted expected tokens per second of all combinations within the budget."""
    rates: list[float] = [
        sum(row.weight * value(row, some) for row, some in zip(case.rows, sets, strict=True))
        / float(case.step_s[sum(map(len, sets))])
        for sets in itertools.product(*per_row)
        if sum(map(len, sets)) < len(case.step_s)
    ]
    return max(rates)


def check_instance(case: Instance) -> bool:
    """Compare with brute force; whether every row with hope could get what it needs."""
    found = select(case.rows, case.step_s)
    sets = [closed_sets(parents) for parents in case.parents]
    goals = [target(row, some) for row, some in zip(case.rows, sets, strict=True)]
    assert found.hopeless.tolist() == [hopeless for _, hopeless in goals]
    assert found.total < len(case.step_s)
    for row, some in enumerate(sets):
        assert tuple(chosen(found)[row]) in some, "a node without its parent"
    assert found.rate == best_of(found, case)
    meeting = [
        [s for s in some if value(row, s) >= goal]
        for row, some, (goal, _) in zip(case.rows, sets, goals, strict=True)
    ]
    feasible = sum(min(map(len, some)) for some in meeting) < len(case.step_s)
    assert found.unfunded.any() == (not feasible)
    if feasible:
        assert found.rate == best_rate(case, meeting)
        smallest = [min(map(len, some)) for some in meeting]
        assert found.slo_nodes.tolist() == smallest
    else:
        check_rationing(found, goals, sets, case)
    return feasible


def best_of(found: Selection, case: Instance) -> float:
    """The best rate among all selections that contain the SLO phase's nodes."""
    kept = [set(found.order[row, : found.slo_nodes[row]].tolist()) for row in range(len(case.rows))]
    sets = [closed_sets(parents) for parents in case.parents]
    return best_rate(case, [[s for s in some if k <= set(s)] for some, k in zip(sets, kept, strict=True)])


def check_rationing(
    found: Selection, goals: list[tuple[float, bool]], sets: list[list[tuple[int, ...]]], case: Instance
) -> None:
    """By falling need each row gets all it asks for, or nothing if that does not fit any more."""
    left = len(case.step_s) - 1
    for row in sorted(range(len(goals)), key=lambda i: -found.needed[i]):
        goal, _ = goals[row]
        asked = min(len(s) for s in sets[row] if value(case.rows[row], s) >= goal)
        assert found.unfunded[row] == (asked > left)
        assert found.slo_nodes[row] == (asked if asked <= left else 0)
        left -= int(found.slo_nodes[row])


def test_no_selection_within_the_promises_brings_more_tokens_per_second() -> None:
    rng = np.random.default_rng(11)
    outcomes = [check_instance(instance(rng)) for _ in range(2500)]
    assert 100 < outcomes.count(False) < 2300, "both kinds of instances occur"


def test_64_rows_of_24_candidates_take_less_than_a_millisecond() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(64):
        f = [1.0]
        for _ in range(24):
            f.append(f[int(rng.integers(0, len(f)))] * rng.random())
        rows.append(Candidates(np.array(f), Need(((0.0, 1.5),)) if i % 2 else NONE, levels=6, n_max=12))
    step_s = 1.0 + 0.01 * np.arange(513.0)
    assert select(rows, step_s).total > 64
    assert any(seconds(rows, step_s) < 1e-3 for _ in range(2000))


def seconds(rows: list[Candidates], step_s: Floats) -> float:
    started = time.perf_counter()
    select(rows, step_s)
    return time.perf_counter() - started
