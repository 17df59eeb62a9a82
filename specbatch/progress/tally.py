"""What progress is made of: counts, and rates from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LONGEST_S = 99 * 86400
"""From here on a time to go is a guess that needs no number."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the engine reports after a step.

    Attributes:
        phase: What it is doing, one word.
        output_tokens: Produced by this attempt so far.
        owner_tokens: Verified tokens of owners with a quota, earlier attempts included; goes on changing.
        attributed_s: Engine time of this attempt that rows have a share in, seconds.
        attributed_j: Likewise joules; ``None`` where they were not measured.
    """

    phase: str
    rows_in_flight: int
    rows_waiting: int
    output_tokens: int
    owner_tokens: Mapping[str, int] = field(default_factory=dict)
    attributed_s: float = 0.0
    attributed_j: float | None = None


@dataclass(slots=True)
class Tally:
    """Rows that ended so far, earlier attempts included. Shared with the reporter, which only reads it."""

    total: int = 0
    done: int = 0
    failed: int = 0
    slo_met: int = 0
    slo_missed: int = 0
    output_tokens: int = 0

    @property
    def attainment(self) -> float | None:
        """Share of rows with promises that kept them; ``None`` while there are none."""
        promised = self.slo_met + self.slo_missed
        return self.slo_met / promised if promised else None

    @property
    def share(self) -> float:
        """Rows done, as a part of all."""
        return self.done / max(1, self.total)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast it goes; ``None`` where nothing is known yet."""

    tokens_per_s: float | None
    eta_s: float | None


class Rate:
    """Rows and tokens per second since the engine began.

    Args:
        tally: As the engine begins; ``done`` then is not this attempt's work.
        clock: Monotonic seconds.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._tally, self._clock = tally, clock
        self._started, self._done_before = clock(), tally.done

    def pace(self, snapshot: Snapshot | None) -> Pace:
        """Averages since the engine began."""
        elapsed = max(1e-9, self._clock() - self._started)
        done = self._tally.done - self._done_before
        return Pace(
            tokens_per_s=None if snapshot is None else snapshot.output_tokens / elapsed,
            eta_s=(self._tally.total - self._tally.done) * elapsed / done if done else None,
        )

    def describe(self, snapshot: Snapshot | None) -> str:
        """Tokens per second, rows in flight, time left and attainment, as far as known."""
        pace = self.pace(snapshot)
        parts: list[str] = []
        if snapshot is not None:
            parts += [f"{pace.tokens_per_s:.0f} tokens/s", f"{snapshot.rows_in_flight} in flight"]
        if pace.eta_s is not None:
            parts.append(f"ETA {duration(pace.eta_s)}")
        if self._tally.failed:
            parts.append(f"{self._tally.failed} failed")
        if self._tally.attainment is not None:
            parts.append(f"SLO {self._tally.attainment:.0%}")
        return ", ".join(parts)

    def fields(self, snapshot: Snapshot, narrow: bool = False) -> str:
        """The same for a line that redraws itself: whatever the numbers, each stays in its place.

        Args:
            snapshot: The engine's latest.
            narrow: Without rows in flight; with failures only when there are some.
        """
        pace, failed, attainment = self.pace(snapshot), self._tally.failed, self._tally.attainment
        eta = "-" if pace.eta_s is None else duration(pace.eta_s) if pace.eta_s < _LONGEST_S else ">99d"
        met = "-" if attainment is None else f"{attainment:.0%}"
        parts = [f"{pace.tokens_per_s or 0:5.0f} tok/s", f"ETA {eta:>6}", f"SLO {met:>4}"]
        if not narrow:
            parts = [parts[0], f"{snapshot.rows_in_flight:4d} in flight", *parts[1:], f"{failed:4d} failed"]
        elif failed:
            parts.append(f"{failed} failed")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """``75`` → ``1m15s``; at most two units."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours >= 100:
        return f"{hours // 24}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"
