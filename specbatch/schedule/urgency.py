"""The order of all scheduling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from specbatch.errors import RowFault
from specbatch.rows import Row


class Urgency(NamedTuple):
    """Sort key of all scheduling: smaller goes first; equal promises go oldest first.

    Attributes:
        late: Whether the deadline has passed or cannot be kept; such rows queue behind all others.
        due: Seconds on the run clock at which the row's next promise falls due; ``inf`` without one.
        priority: The tier's priority, lower is more urgent.
        arrival: Seconds on the run clock.
        row_index: Input order decides what is left.
    """

    late: bool
    due: float
    priority: int
    arrival: float
    row_index: int

    @property
    def claim(self) -> tuple[bool, float, int]:
        """What may be held against others; age is no reason to take a place from somebody."""
        return self[:3]


def urgency_of(row: Row, priority: Callable[[str], int], now: float) -> Urgency:
    """A row's place in every queue.

    Promises that cannot be kept any more count for nothing, except that a lost deadline puts the row
    behind all others. What falls due of a TPOT SLO is the row's next token.

    Args:
        row: Waiting or in flight.
        priority: Tier name → priority.
        now: Seconds on the run clock.
    """
    prompt, slo, lost = row.prompt, row.prompt.slo, row.standing.lost
    late, due = "deadline" in lost, math.inf
    if slo.deadline is not None and not late:
        late, due = slo.deadline < now, slo.deadline
    if row.first_token_at is None:
        if slo.ttft_ms is not None and "ttft_ms" not in lost:
            first = prompt.arrival + 1e-3 * slo.ttft_ms
            due = min(due, first) if first >= now else due
    elif slo.tpot_ms is not None and "tpot_ms" not in lost:
        due = min(due, row.first_token_at + 1e-3 * slo.tpot_ms * len(row.output))
    return Urgency(late, due, priority(row.tier), prompt.arrival, prompt.row_index)


def open_promises(row: Row) -> frozenset[str]:
    """Promises that a row has and that can still be kept as far as is known, by their names in the SLO."""
    slo = row.prompt.slo
    given = {"deadline": slo.deadline, "tpot_ms": slo.tpot_ms, "ttft_ms": slo.ttft_ms}
    return frozenset(name for name, value in given.items() if value is not None) - row.standing.lost


def deadline_in_force(row: Row) -> float:
    """After which the row is late, seconds on the run clock; ``inf`` without a deadline."""
    slo = row.promised if "deadline" in row.standing.lost else row.prompt.slo
    return math.inf if slo.deadline is None else slo.deadline


def deadline_passed() -> RowFault:
    """Why a row ends ``expired``."""
    return RowFault("deadline_passed", "the deadline passed before the row was finished (late = drop)")
