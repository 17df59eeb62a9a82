"""Joules from samples of power, for boards that count none themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from specbatch.errors import MeterFault

SAMPLE_S = 0.05
"""Seconds between two samples."""


class PowerIntegral:
    """Adds up power by the trapezoidal rule, in a thread of its own.

    Args:
        watts: Takes a sample; raises :class:`MeterFault` when it cannot.
        clock: Seconds.
    """

    def __init__(self, watts: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._watts, self._clock = watts, clock
        self._lock, self._done = threading.Lock(), threading.Event()
        self._fault: MeterFault | None = None
        self._time, self._power, self._joules = clock(), watts(), 0.0
        self._thread = threading.Thread(target=self._keep_sampling, name="power samples", daemon=True)

    def start(self) -> None:
        """Sample from now on; without it, there is a sample whenever the sum is asked for."""
        self._thread.start()

    def joules(self) -> float:
        """Since it was made.

        Raises:
            MeterFault: A sample could not be taken.
        """
        self._sample()
        if self._fault is not None:
            raise self._fault
        return self._joules

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep_sampling(self) -> None:
        while self._fault is None and not self._done.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            if self._fault is not None:
                return
            try:
                power = self._watts()
            except MeterFault as fault:
                self._fault = fault  # told by whoever asks for the sum
                return
            now = self._clock()
            self._joules += (now - self._time) * (power + self._power) / 2
            self._time, self._power = now, power
