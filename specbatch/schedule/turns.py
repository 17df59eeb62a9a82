"""Rows that take turns: a time per token that cannot be kept beside others may be kept behind them.

The clock of a TPOT SLO starts with the row's first token. A row that was promised nothing else for the
near future loses nothing by beginning later, when those in a hurry have ended; beginning now it would break
its own promise and theirs. Rows without promises take the places meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.rows import Row
from specbatch.schedule.foresight import Foresight

TURNS = 4
"""Rows that wait at most, and times of what a row was promised to take for which it waits at most. The rest
of a crowd is treated as its tier says: one row at a time would make a night of an hour's work."""


class Turns:
    """Which rows begin later, although there is a place.

    Args:
        foresight: Knows what fits beside each other.
    """

    def __init__(self, foresight: Foresight) -> None:
        self._foresight = foresight
        self._waiting: set[Row] = set()

    def waits(self, row: Row, now: float, hurried: Sequence[Row]) -> bool:
        """Whether a row had better begin later.

        Args:
            row: It has not begun.
            now: Seconds on the run clock.
            hurried: Rows in flight that have promises.
        """
        waiting = {each for each in self._waiting if each.admitted_at is None and each is not row}
        may = bool(hurried) and len(waiting) < TURNS and now <= _patience(row)
        waits = may and self._foresight.cramped(row, now, hurried)
        self._waiting = waiting | {row} if waits else waiting
        return waits

    def forget(self, row: Row) -> None:
        """A row has left the engine, or gone back to where it came from."""
        self._waiting.discard(row)


def _patience(row: Row) -> float:
    """Up to when a row may wait, seconds on the run clock, so that what else it was promised still holds."""
    slo, arrival = row.prompt.slo, row.prompt.arrival
    if slo.tpot_ms is None:
        return arrival
    own = 1e-3 * slo.tpot_ms * row.prompt.params.max_tokens
    until = arrival + TURNS * own
    if slo.deadline is not None:
        until = min(until, slo.deadline - 2.0 * own)  # its prompt takes time, too
    if slo.ttft_ms is not None:
        until = min(until, arrival + 0.5e-3 * slo.ttft_ms)
    return until
