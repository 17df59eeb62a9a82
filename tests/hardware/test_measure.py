"""Measuring on a clock of our own: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.hardware.measure import Effort, Probe, Timing, measure


class Clock:
    """Time passes only while a probe runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def probe(
        self, name: str, seconds: list[float] | float, size: float = 1.0, kind: str = "k"
    ) -> Probe[str]:
        times = iter(seconds) if isinstance(seconds, list) else None

        def run() -> None:
            self.order.append(name)
            self.now += float(seconds) if times is None else next(times)  # type: ignore[arg-type]

        return Probe(name, kind, size, run)


PLENTY = Effort(1e6, 3)


def test_the_median_of_the_repeats_counts_and_the_first_one_warms_up() -> None:
    clock = Clock()
    found = measure([clock.probe("a", [99.0, 3.0, 50.0, 2.0])], PLENTY, clock=clock)
    assert found == {"a": Timing(3.0, 3)}


def test_probes_take_turns_and_every_other_round_runs_backwards() -> None:
    clock = Clock()
    measure([clock.probe(name, 1.0) for name in "abc"], Effort(1e6, 2), clock=clock)
    assert clock.order == list("abccbaabc")


def test_a_disturbance_hits_one_repeat_of_many_probes() -> None:
    clock = Clock()
    slow = range(4, 8)  # the second round

    def probe(name: str) -> Probe[str]:
        def run() -> None:
            clock.now += 10.0 if len(clock.order) in slow else 1.0
            clock.order.append(name)

        return Probe(name, "k", 1.0, run)

    found = measure([probe(name) for name in "abcd"], PLENTY, clock=clock)
    assert found == {name: Timing(1.0, 3) for name in "abcd"}


def test_where_time_ends_the_first_measurement_counts() -> None:
    clock = Clock()
    found = measure([clock.probe("a", 1.0), clock.probe("b", 1.0)], Effort(2.5, 3), clock=clock)
    assert found == {"a": Timing(1.0, 1), "b": Timing(1.0, 1)}


def test_where_time_is_short_the_quickest_are_repeated() -> None:
    clock = Clock()
    probes = [clock.probe("a", 1.0), clock.probe("b", 1.0), clock.probe("long", 10.0, 10.0)]
    found = measure(probes, Effort(18.0, 3), clock=clock)
    assert found == {"long": Timing(10.0, 1), "a": Timing(1.0, 3), "b": Timing(1.0, 3)}
    assert clock.now <= 1018.0


def test_what_would_end_too_late_is_not_begun() -> None:
    clock = Clock()
    probes = [clock.probe("small", 1.0), clock.probe("huge", 64.0, size=64.0), clock.probe("fair", 2.0, 2.0)]
    found = measure(probes, Effort(6.0, 1), clock=clock)
    assert "huge" not in clock.order
    assert set(found) == {"small", "fair"}
    assert clock.now <= 1006.0


def test_kinds_say_nothing_about_each_other() -> None:
    clock = Clock()
    probes = [clock.probe("a", 5.0, size=1.0, kind="x"), clock.probe("b", 0.1, size=100.0, kind="y")]
    assert set(measure(probes, Effort(6.0, 1), clock=clock)) == {"a", "b"}


def test_a_clock_that_stands_still_measures_nothing() -> None:
    clock = Clock()
    assert measure([clock.probe("a", 0.0)], PLENTY, clock=clock) == {}


def test_progress_reaches_its_end_even_when_time_does_not_suffice() -> None:
    clock = Clock()
    seen: list[tuple[int, int]] = []
    note: Callable[[int, int], None] = lambda done, most: seen.append((done, most))  # noqa: E731
    measure([clock.probe(name, 1.0) for name in "ab"], Effort(3.0, 4), note, clock)
    assert seen[0] == (1, 10)
    assert seen[-1] == (10, 10)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(1, 8)), min_size=1, max_size=8), st.floats(0.1, 30.0)
)
def test_probes_that_grow_at_most_in_proportion_keep_the_budget(
    probes: list[tuple[float, int]], budget: float
) -> None:
    clock = Clock()
    rate = min(seconds for seconds, _ in probes)
    named = [clock.probe(str(i), rate * size, size) for i, (_, size) in enumerate(probes)]
    measure(named, Effort(budget, 3), clock=clock)
    first = rate * probes[0][1]  # whose time nothing is known about
    assert clock.now - 1000.0 <= max(budget, first) + 1e-9


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_there_are_as_many_repeats_as_asked_for(repeats: int) -> None:
    clock = Clock()
    assert measure([clock.probe("a", 1.0)], Effort(1e6, repeats), clock=clock)["a"].repeats == repeats
