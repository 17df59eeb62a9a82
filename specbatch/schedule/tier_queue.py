"""The waiting rows of one tier, as numbers only.

Memory is a few words per row: the rows that are there from the beginning are one sorted array with a
cursor; rows that arrive later, and rows that come back with another claim, pass through heaps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from specbatch.schedule.urgency import Urgency

Late = Literal["answer", "drop"]
Places = NDArray[np.int64]
Entry = tuple[Urgency, int, int]
"""Claim, place in the feed, and how often the row had come back when it was made."""


class Schedulable(Protocol):
    """The columns of :class:`specbatch.engine.feed.Feed` that order rows."""

    rows: NDArray[np.int64]
    arrival: NDArray[np.float64]
    deadline: NDArray[np.float64]
    due: NDArray[np.float64]
    priority: NDArray[np.int16]
    tier: NDArray[np.int16]


@dataclass(slots=True)
class Marks:
    """What the queues of all tiers share; ``n`` rows.

    Attributes:
        present: Whether a row waits, bool ``[n]``.
        returns: How often it came back, uint8 ``[n]``: entries from before are void.
        deadlines: Place → deadline, of rows that came back with another one.
    """

    present: NDArray[np.bool_]
    returns: NDArray[np.uint8]
    deadlines: dict[int, float] = field(default_factory=dict)


class TierQueue:
    """One tier.

    Args:
        feed: All rows.
        members: Places of this tier's rows in the feed, int64.
        late: What becomes of rows whose deadline passes while they wait.
        max_wait: Seconds after which a row goes before all others; ``None`` for never.
        marks: Shared by all tiers.
    """

    def __init__(
        self, feed: Schedulable, members: Places, late: Late, max_wait: float | None, marks: Marks
    ) -> None:
        self._feed, self._late_rule, self._max_wait, self._marks = feed, late, max_wait, marks
        rows, arrival = feed.rows[members], feed.arrival[members]
        here = arrival <= 0.0
        due, priority = feed.due[members], feed.priority[members]
        order = np.lexsort((rows[here], arrival[here], priority[here], due[here]))
        self._sorted: Places = members[here][order]
        self._cursor = 0
        self._coming: Places = members[~here][np.lexsort((rows[~here], arrival[~here]))]
        self._arrived = 0
        self._by_age: Places = members[:0] if max_wait is None else members[np.lexsort((rows, arrival))]
        self._seen = 0
        self._returned: list[tuple[float, int, int]] = []  # by age: arrival, row, place
        self._heap: list[Entry] = []
        self._overdue: list[Entry] = []
        self.expired: list[int] = []

    def next_arrival(self) -> float:
        """When the next row comes into existence; ``inf`` when all are there."""
        if self._arrived == len(self._coming):
            return math.inf
        return float(self._feed.arrival[self._coming[self._arrived]])

    def head(self, now: float) -> Entry | None:
        """The most urgent row that is there; late ones only when there are no others."""
        self._advance(now)
        first = self._first()
        return first if first is not None else (self._overdue[0] if self._overdue else None)

    def oldest(self, now: float) -> Entry | None:
        """The row that has waited longest, if that is for longer than it may."""
        if self._max_wait is None:
            return None
        for arrival, row, place in self._ages():
            if arrival + self._max_wait >= now:
                return None
            urgency = Urgency(False, -math.inf, int(self._feed.priority[place]), arrival, row)
            return urgency, place, int(self._marks.returns[place])
        return None

    def put_back(self, urgency: Urgency, place: int) -> None:
        """A row comes back with another claim."""
        heap = self._overdue if urgency.late else self._heap
        heapq.heappush(heap, (urgency, place, int(self._marks.returns[place])))
        if self._max_wait is not None:
            heapq.heappush(self._returned, (urgency.arrival, urgency.row_index, place))

    def _advance(self, now: float) -> None:
        """Let rows arrive, and sort out those that have missed something."""
        while self._arrived < len(self._coming):
            place = int(self._coming[self._arrived])
            if self._feed.arrival[place] > now:
                break
            heapq.heappush(self._heap, (self._urgency(place), place, 0))
            self._arrived += 1
        while (entry := self._first()) is not None and entry[0].due < now:
            if self._heap and entry is self._heap[0]:
                heapq.heappop(self._heap)
            else:
                self._cursor += 1
            self._missed(entry, now)
        while self._overdue and (self._void(self._overdue[0]) or self._expires(self._overdue[0][1], now)):
            entry = heapq.heappop(self._overdue)
            if not self._void(entry):
                self._expire(entry)

    def _missed(self, entry: Entry, now: float) -> None:
        """The time to the first token is over, or the deadline."""
        urgency, place, returns = entry
        deadline = self._deadline(place)
        if self._expires(place, now):
            self._expire(entry)
        elif deadline < now:
            heapq.heappush(self._overdue, (urgency._replace(late=True, due=deadline), place, returns))
        else:
            heapq.heappush(self._heap, (urgency._replace(due=deadline), place, returns))

    def _expires(self, place: int, now: float) -> bool:
        return self._late_rule == "drop" and self._deadline(place) < now

    def _expire(self, entry: Entry) -> None:
        self._marks.present[entry[1]] = False
        self.expired.append(entry[0].row_index)

    def _deadline(self, place: int) -> float:
        own = self._marks.deadlines.get(place)
        return float(self._feed.deadline[place]) if own is None else own

    def _first(self) -> Entry | None:
        """The most urgent row that is there and not late."""
        while self._heap and self._void(self._heap[0]):
            heapq.heappop(self._heap)
        heap = self._heap[0] if self._heap else None
        while self._cursor < len(self._sorted):
            place = int(self._sorted[self._cursor])
            if self._marks.present[place] and not self._marks.returns[place]:
                first = (self._urgency(place), place, 0)
                return heap if heap is not None and heap < first else first
            self._cursor += 1
        return heap

    def _ages(self) -> Iterator[tuple[float, int, int]]:
        """The row that has waited longest, or nothing."""
        while self._returned and not self._marks.present[self._returned[0][2]]:
            heapq.heappop(self._returned)
        returned = self._returned[0] if self._returned else None
        while self._seen < len(self._by_age):
            place = int(self._by_age[self._seen])
            if self._marks.present[place] and not self._marks.returns[place]:
                first = (float(self._feed.arrival[place]), int(self._feed.rows[place]), place)
                yield first if returned is None else min(first, returned)
                return
            self._seen += 1
        if returned is not None:
            yield returned

    def _void(self, entry: Entry) -> bool:
        return not self._marks.present[entry[1]] or self._marks.returns[entry[1]] != entry[2]

    def _urgency(self, place: int) -> Urgency:
        feed = self._feed
        return Urgency(
            False,
            float(feed.due[place]),
            int(feed.priority[place]),
            float(feed.arrival[place]),
            int(feed.rows[place]),
        )
