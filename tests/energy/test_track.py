"""What is read from a meter between its movements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.energy.meter import Method
from specbatch.energy.track import POWER_WINDOW_S, EnergyTrack, idle_watts
from specbatch.errors import MeterFault


class Coarse:
    """A counter that moves every so often, under a power that is known."""

    method: Method = "nvml"
    scope = "a fake"

    def __init__(self, every_s: float = 0.1, watts: float = 200.0) -> None:
        self.time, self.real, self.every_s, self.watts = 0.0, 0.0, every_s, watts
        self._shown, self.reads, self.broken = 0.0, 0, False

    def now(self) -> float:
        return self.time

    def go(self, seconds: float) -> None:
        before = math.floor(self.time / self.every_s)
        self.time += seconds
        self.real += seconds * self.watts
        if math.floor(self.time / self.every_s) > before:
            self._shown = self.real

    def joules(self) -> float:
        self.reads += 1
        if self.broken:
            raise MeterFault("gone")
        return self._shown

    def close(self) -> None:
        """Nothing to let go of."""


@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(10.0, 700.0)), min_size=1, max_size=60))
def test_joules_never_fall_and_stay_near_the_truth(laps: list[tuple[float, float]]) -> None:
    meter = Coarse()
    track = EnergyTrack(meter, meter.now)
    told, highest = [0.0], 0.0
    for seconds, watts in laps:
        meter.watts, highest = watts, max(highest, watts)
        meter.go(seconds)
        found = track.joules()
        assert found is not None
        told.append(found)
        assert found <= meter.real + highest * 3 * POWER_WINDOW_S
        assert found >= meter.real - highest * (meter.every_s + 0.3 + 0.02)
    assert told == sorted(told)


def test_a_movement_of_the_counter_is_spread_over_the_steps_before_it() -> None:
    meter = Coarse(every_s=0.1, watts=300.0)
    track = EnergyTrack(meter, meter.now)
    told = []
    for _ in range(200):
        meter.go(0.013)
        told.append(track.joules() or 0.0)
    steps = np.diff(told[100:])
    assert max(steps) < 2.5 * 300.0 * 0.013, "one step has what eight of them took"
    assert min(np.convolve(steps, np.ones(3), "valid")) > 0.9 * 300.0 * 0.013, "three have nearly nothing"
    assert told[-1] == pytest.approx(meter.real, rel=0.02)


def test_peak_is_of_windows_and_not_of_moments() -> None:
    meter = Coarse(every_s=0.01, watts=100.0)
    track = EnergyTrack(meter, meter.now)
    for watts, seconds in ((100.0, 2.0), (900.0, 0.05), (100.0, 1.0), (300.0, 2.0)):
        meter.watts = watts
        for _ in range(round(seconds / 0.025)):
            meter.go(0.025)
            track.joules()
    assert track.peak_watts == pytest.approx(300.0, rel=0.05)


def test_a_meter_that_fails_leaves_no_number() -> None:
    meter = Coarse()
    track = EnergyTrack(meter, meter.now)
    meter.go(1.0)
    assert track.joules() == pytest.approx(200.0)
    meter.broken = True
    meter.go(1.0)
    assert track.joules() is None
    assert track.total() is None
    assert track.fault == "the meter failed: gone"


def test_the_meter_is_not_read_more_often_than_makes_sense() -> None:
    meter = Coarse()
    track = EnergyTrack(meter, meter.now)
    before = meter.reads
    for _ in range(1000):
        meter.go(0.0001)
        track.joules()
    assert meter.reads - before <= 6
    assert track.total() is not None


def test_counting_begins_anew() -> None:
    meter = Coarse(every_s=0.001)
    track = EnergyTrack(meter, meter.now)
    meter.go(3.0)
    track.restart()
    meter.go(1.0)
    assert track.joules() == pytest.approx(200.0)


def test_idle_power_is_that_of_the_pause() -> None:
    meter = Coarse(every_s=0.001, watts=35.0)

    def sleep(seconds: float) -> None:
        meter.go(seconds)

    assert idle_watts(meter, 2.0, sleep, meter.now) == pytest.approx(35.0)
