"""Rows that end without an engine: the fast path of a run that has nothing but faulty rows left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specbatch.errors import RowFault
from specbatch.job.feed import TableFeed
from specbatch.job.host import RunHost
from specbatch.rows import Status
from specbatch.schedule.tier_queue import Late
from specbatch.schedule.urgency import deadline_passed


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a row ends that is never run."""

    row: int
    status: Literal[Status.REJECTED, Status.EXPIRED]
    fault: RowFault


def refusals(feed: TableFeed, late: Late, now: float) -> list[Refusal] | None:
    """How all rows of a feed end if not one of them needs an engine; ``None`` as soon as one does.

    Args:
        feed: The rows.
        late: What becomes of rows whose deadline has passed.
        now: Seconds on the run clock; rows that have not arrived are left to the engine.
    """
    ended: list[Refusal] = []
    for row, arrival, deadline in zip(feed.rows, feed.arrival, feed.deadline, strict=True):
        if arrival > now:
            return None
        if late == "drop" and deadline < now:
            ended.append(Refusal(int(row), Status.EXPIRED, deadline_passed()))
            continue
        try:
            feed.fetch(int(row))
        except RowFault as fault:
            ended.append(Refusal(int(row), Status.REJECTED, fault))
        else:
            return None
    return ended


def refuse(ended: list[Refusal], host: RunHost) -> None:
    """Have rows end so, or leave early when the host asks for it."""
    for refusal in ended:
        if host.stop_requested():
            return
        host.refuse(refusal.row, refusal.status, refusal.fault)
