"""What a row was promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """What was promised to a row; ``None`` means not promised.

    Attributes:
        deadline: Latest completion, seconds on the run clock.
        tpot_ms: Mean milliseconds per output token after the first.
        ttft_ms: Milliseconds from arrival to the first output token.
        until: When the whole run is to be over; ``deadline`` is never later, whatever is promised instead.
    """

    deadline: float | None = None
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    until: float | None = None


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two moments; ``None`` is never."""
    return min((moment for moment in (one, other) if moment is not None), default=None)
