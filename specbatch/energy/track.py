"""What a meter says while a run goes on: joules at any moment, mean and peak power."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from specbatch.energy.meter import EnergyMeter
from specbatch.errors import MeterFault

READ_EVERY_S = 0.02
"""Meters are read no more often; in between, power is taken to stay what it was."""

POWER_WINDOW_S = 0.5
"""Seconds over which power is taken: shorter than a fan notices, longer than counters take to move."""


class EnergyTrack:
    """Reads a meter as often as makes sense.

    Counters move in jumps (NVML's about ten times a second), and a step must not get a jump that belongs
    to five of them. So joules between two movements are those at the last one and what the power of the
    last ``POWER_WINDOW_S`` adds; the next movement puts that right. They never fall.

    Args:
        meter: Opened.
        clock: Seconds.

    Attributes:
        fault: Why it cannot be read any more; empty while it can.
        peak_watts: Highest power of any window; ``None`` before the first one is over.
    """

    def __init__(self, meter: EnergyMeter, clock: Callable[[], float] = time.monotonic) -> None:
        self.meter, self._clock = meter, clock
        self.fault = ""
        self.peak_watts: float | None = None
        self._told = self._origin = 0.0
        self._read_at = clock()
        self._moves: deque[tuple[float, float]] = deque()
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._origin, self._told, self.peak_watts = self._meter_joules() or 0.0, 0.0, None
        self._read_at = self._clock()
        self._moves = deque([(self._read_at, 0.0)])

    def joules(self) -> float | None:
        """Since the last restart; ``None`` once the meter has failed."""
        if self.fault:
            return None
        now = self._clock()
        if now - self._read_at >= READ_EVERY_S:
            self._read(now)
        time_s, joules = self._moves[-1]
        self._told = max(self._told, joules + self._watts() * (now - time_s))
        return None if self.fault else self._told

    def total(self) -> float | None:
        """The same, read from the meter at this very moment."""
        if not self.fault:
            self._read(self._clock())
            self._told = max(self._told, self._moves[-1][1])
        return None if self.fault else self._told

    def _read(self, now: float) -> None:
        found = self._meter_joules()
        self._read_at = now
        if found is None:
            return
        joules = found - self._origin
        first_s, first = self._moves[0]
        if joules <= self._moves[-1][1] and now - self._moves[-1][0] < POWER_WINDOW_S:
            return
        self._moves.append((now, joules))
        if now - first_s >= POWER_WINDOW_S:
            watts = (joules - first) / (now - first_s)
            self.peak_watts = max(watts, self.peak_watts or 0.0)
        while now - self._moves[1][0] >= POWER_WINDOW_S:
            self._moves.popleft()

    def _watts(self) -> float:
        """Over the latest window."""
        (first_s, first), (last_s, last) = self._moves[0], self._moves[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _meter_joules(self) -> float | None:
        try:
            return self.meter.joules()
        except MeterFault as fault:
            self.fault = f"the meter failed: {fault}"
            return None


def idle_watts(
    meter: EnergyMeter,
    seconds: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Power while nothing is computed.

    Args:
        meter: Opened.
        seconds: For how long to look, more than 0.
        sleep: Does nothing for so many seconds.
        clock: Seconds.

    Raises:
        MeterFault: The meter cannot be read.
    """
    before, started = meter.joules(), clock()
    sleep(seconds)
    return (meter.joules() - before) / (clock() - started)
