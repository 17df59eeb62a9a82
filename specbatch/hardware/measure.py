"""Measuring how long things take: repeated in turns, within a budget of seconds, medians at the end."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Probe(Generic[K]):
    """Something to be timed.

    Attributes:
        key: What it is.
        kind: Probes of one kind cost more with their size, at most in proportion.
        size: Positive.
        run: Does it once, to the end: nothing may be left running on a device.
    """

    key: K
    kind: str
    size: float
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: Nothing is begun that is expected to end later.
        repeats: Measurements of each probe, at least 1; one more before them warms up.
    """

    seconds: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds over so many repeats."""

    seconds: float
    repeats: int


def measure(
    probes: Sequence[Probe[K]],
    effort: Effort,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, Timing]:
    """Time probes in rounds, each round all of them, forward and backward in turns.

    Where time does not suffice for that, rounds behind the first share what is left of it evenly, and go
    through the quickest probes only: a moment's disturbance is large in proportion to them.

    What disturbs the machine for a moment then hits a repeat of many probes rather than all repeats of
    one, and the median leaves it out. The first time of a probe warms up caches and memory; it counts
    only where it is the only one.

    Args:
        probes: The most important first: with too small a budget the last ones are not measured.
        effort: Bounds.
        progress: Called after each measurement with how many are done and how many there are at most.
        clock: Seconds; any origin.

    Returns:
        A timing for each probe that was measured. A probe that took no time at all is left out: the
        clock was too coarse.
    """
    times: dict[K, list[float]] = {probe.key: [] for probe in probes}
    end = clock() + effort.seconds
    rounds, done = effort.repeats + 1, 0
    for turn in range(rounds):
        share = (end - clock()) / (rounds - turn if turn else 1)
        until = clock() + share
        for probe in _in_order(probes, times, turn, share):
            before = clock()
            if before + _expected(probe, probes, times) <= until:
                probe.run()
                times[probe.key].append(clock() - before)
            done += 1
            if progress is not None:
                progress(done, rounds * len(probes))
    kept = {key: own[1:] or own for key, own in times.items()}
    medians = {key: Timing(statistics.median(own), len(own)) for key, own in kept.items() if own}
    return {key: timing for key, timing in medians.items() if timing.seconds > 0.0}


def _in_order(
    probes: Sequence[Probe[K]], times: dict[K, list[float]], turn: int, share: float
) -> Sequence[Probe[K]]:
    """The probes of a round that may take so many seconds."""
    if turn and sum(own[-1] for own in times.values() if own) > share:
        return sorted(probes, key=lambda probe: times[probe.key][-1] if times[probe.key] else math.inf)
    return probes if turn % 2 == 0 else probes[::-1]


def _expected(probe: Probe[K], probes: Sequence[Probe[K]], times: dict[K, list[float]]) -> float:
    """Seconds a probe may take: as the last time, or in proportion to the largest one of its kind so far."""
    if times[probe.key]:
        return times[probe.key][-1]
    known = [other for other in probes if other.kind == probe.kind and times[other.key]]
    if not known:
        return 0.0
    largest = max(known, key=lambda other: other.size)
    return times[largest.key][-1] * max(1.0, probe.size / largest.size)
