"""The contract of every meter, and the meter that measures nothing but time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

Method = Literal["nvml", "rapl", "assumed"]
"""How joules come about; a run without any of these has the method ``none``."""


class EnergyMeter(Protocol):
    """A counter of joules."""

    @property
    def method(self) -> Method:
        """How it measures."""
        ...

    @property
    def scope(self) -> str:
        """What is counted, for people: which parts of the machine, and who else uses them."""
        ...

    def joules(self) -> float:
        """Joules since it was opened; never falls.

        Raises:
            MeterFault: It cannot be read any more.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(frozen=True, slots=True)
class NoMeter:
    """Why there is no meter.

    Attributes:
        reason: For people, and for ``summary.json``.
        hint: What would help; empty when nothing does.
    """

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class AssumedWatts:
    """So many watts, as somebody said, whatever the machine does.

    Attributes:
        watts: The assumption.
        clock: Seconds.
        started: ``clock()`` when it was opened.
    """

    watts: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)
    method: Method = "assumed"

    @property
    def scope(self) -> str:
        """The assumption itself."""
        return f"{self.watts:g} W at all times, nothing was measured"

    def joules(self) -> float:
        """Watts times seconds."""
        return self.watts * (self.clock() - self.started)

    def close(self) -> None:
        """There is nothing to let go of."""
