"""Rows that wait, as numbers only: prompts are fetched when a row is admitted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specbatch.schedule.tier_queue import Entry, Late, Marks, Schedulable, TierQueue
from specbatch.schedule.urgency import Urgency


class WaitingRows:
    """Every row still to be admitted.

    Args:
        feed: The rows, n of them.
        late: What becomes of rows whose deadline passes while they wait.
        max_wait: For each tier how many seconds its rows wait before they go before all others, or ``None``.
    """

    def __init__(self, feed: Schedulable, late: Late, max_wait: Sequence[float | None]) -> None:
        self._marks = Marks(np.ones(len(feed.rows), np.bool_), np.zeros(len(feed.rows), np.uint8))
        self._queues = {
            tier: TierQueue(feed, np.flatnonzero(feed.tier == tier), late, longest, self._marks)
            for tier, longest in enumerate(max_wait)
        }
        self._count = len(feed.rows)
        self._taken = -1

    def __len__(self) -> int:
        """Rows not yet taken, those that have not arrived included."""
        return self._count

    def peek(self, now: float, tier: int | None = None) -> Urgency | None:
        """Urgency of the most urgent row that is there, of one tier or of all; ``None`` when none is."""
        entry = self._head(now, tier)
        return None if entry is None else entry[0]

    def take(self, now: float, tier: int | None = None) -> int:
        """Remove the row that :meth:`peek` shows and return its row index.

        Raises:
            IndexError: There is none.
        """
        return self._remove(self._head(now, tier))

    def has_waited_too_long(self, now: float) -> bool:
        """Whether some row has waited for as long as its tier allows."""
        return self._oldest(now) is not None

    def take_oldest(self, now: float) -> int:
        """Remove the row that has waited too long for longest and return its row index.

        Raises:
            IndexError: There is none.
        """
        return self._remove(self._oldest(now))

    def put_back(self, urgency: Urgency, tier: int, deadline: float) -> None:
        """The row that was taken last goes on waiting, with another claim.

        Args:
            urgency: Its new place.
            tier: The tier that it waits in.
            deadline: The deadline in force, seconds on the run clock; ``inf`` without one.
        """
        place = self._taken
        self._marks.present[place] = True
        self._marks.returns[place] += 1
        self._marks.deadlines[place] = deadline
        self._count += 1
        self._queues[tier].put_back(urgency, place)

    def take_expired(self, now: float) -> list[int]:
        """Remove and return the rows whose deadline passed, when the rule is to drop them."""
        expired: list[int] = []
        for queue in self._queues.values():
            queue.head(now)
            expired += queue.expired
            queue.expired = []
        self._count -= len(expired)
        return sorted(expired)

    def tiers_waiting(self, now: float) -> list[int]:
        """Tiers of which rows are there."""
        return [tier for tier, queue in self._queues.items() if queue.head(now) is not None]

    def next_arrival(self) -> float | None:
        """When the next row comes into existence; ``None`` when all are there."""
        arrival = min((queue.next_arrival() for queue in self._queues.values()), default=math.inf)
        return None if math.isinf(arrival) else arrival

    def _head(self, now: float, tier: int | None) -> Entry | None:
        queues = self._queues.values() if tier is None else [self._queues[tier]]
        return min((head for queue in queues if (head := queue.head(now)) is not None), default=None)

    def _oldest(self, now: float) -> Entry | None:
        queues = self._queues.values()
        found = [entry for queue in queues if (entry := queue.oldest(now)) is not None]
        return min(found, key=lambda entry: entry[0][3:], default=None)

    def _remove(self, entry: Entry | None) -> int:
        if entry is None:
            raise IndexError("no row is waiting")
        self._taken = entry[1]
        self._marks.present[self._taken] = False
        self._count -= 1
        return entry[0].row_index
