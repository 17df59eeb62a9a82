"""What a profile is made of: times that were measured, and of what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """Time of a target pass over ``tokens`` tokens of ``rows`` rows with ``context`` tokens each."""

    tokens: int
    rows: int
    context: int
    seconds: float
    repeats: int


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """Time of drafting trees of ``levels`` levels and one width for ``rows`` rows."""

    rows: int
    width: int
    levels: int
    seconds: float
    repeats: int


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Time of a target pass over ``tokens`` prompt tokens of one row."""

    tokens: int
    seconds: float
    repeats: int


def sizes(point: VerifyPoint | DraftPoint | PrefillPoint) -> tuple[int, ...]:
    """What was measured at a point."""
    if isinstance(point, VerifyPoint):
        return point.tokens, point.rows, point.context
    if isinstance(point, DraftPoint):
        return point.rows, point.width, point.levels
    return (point.tokens,)
