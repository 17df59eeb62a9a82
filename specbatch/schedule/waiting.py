"""Rows that wait, as numbers only: prompts are fetched when a row is admitted.

Memory is a few words per row, however long the prompts: the rows that are there from the beginning
are one sorted array with a cursor; rows that arrive later pass through a heap.
"""

from __future__ import annotations

import heapq
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbatch.errors import RowFault

Late = Literal["answer", "drop"]


class Urgency(NamedTuple):
    """Sort key of all scheduling: smaller goes first; equal promises go oldest first.

    Attributes:
        late: Whether the deadline has passed; late rows queue behind every row that is not.
        deadline: Seconds on the run clock; ``inf`` without one.
        priority: The tier's priority, lower is more urgent.
        arrival: Seconds on the run clock.
        row_index: Input order decides what is left.
    """

    late: bool
    deadline: float
    priority: int
    arrival: float
    row_index: int


def deadline_passed() -> RowFault:
    """Why a row ends ``expired``."""
    return RowFault("deadline_passed", "the deadline passed before the row was finished (late = drop)")


class WaitingRows:
    """Every row still to be admitted.

    Args:
        rows: Row indices, int64 ``[n]``.
        arrival: Seconds on the run clock, float64 ``[n]``.
        deadline: Seconds on the run clock, ``inf`` without one, float64 ``[n]``.
        priority: Tier priorities, int16 ``[n]``.
        late: What becomes of rows whose deadline passes while they wait.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        arrival: NDArray[np.float64],
        deadline: NDArray[np.float64],
        priority: NDArray[np.int16],
        late: Late,
    ) -> None:
        self._rows, self._arrival, self._deadline, self._priority = rows, arrival, deadline, priority
        self._late_rule = late
        here = np.flatnonzero(arrival <= 0.0)
        order = np.lexsort((rows[here], arrival[here], priority[here], deadline[here]))
        self._sorted: NDArray[np.int64] = here[order]
        self._cursor = 0
        coming = np.flatnonzero(arrival > 0.0)
        self._coming: NDArray[np.int64] = coming[np.lexsort((rows[coming], arrival[coming]))]
        self._arrived = 0
        self._heap: list[tuple[Urgency, int]] = []
        self._overdue: list[tuple[Urgency, int]] = []
        self._expired: list[int] = []

    def __len__(self) -> int:
        """Rows not yet taken, those that have not arrived included."""
        unsorted = len(self._coming) - self._arrived + len(self._heap) + len(self._overdue)
        return len(self._sorted) - self._cursor + unsorted

    def peek(self, now: float) -> Urgency | None:
        """Urgency of the most urgent row that is there; ``None`` when none is."""
        self._advance(now)
        head = self._head()
        if head is not None:
            return head[0]
        return self._overdue[0][0] if self._overdue else None

    def take(self, now: float) -> int:
        """Remove the row that :meth:`peek` shows and return its row index."""
        self._advance(now)
        head = self._head()
        if head is None:
            return heapq.heappop(self._overdue)[0].row_index
        if self._heap and head is self._heap[0]:
            heapq.heappop(self._heap)
        else:
            self._cursor += 1
        return head[0].row_index

    def take_expired(self, now: float) -> list[int]:
        """Remove and return the rows whose deadline passed, when the rule is to drop them."""
        self._advance(now)
        expired, self._expired = self._expired, []
        return expired

    def next_arrival(self) -> float | None:
        """When the next row comes into existence; ``None`` when all are there."""
        if self._arrived == len(self._coming):
            return None
        return float(self._arrival[self._coming[self._arrived]])

    def _advance(self, now: float) -> None:
        """Let rows arrive, and sort out those that have become late."""
        while self._arrived < len(self._coming):
            i = int(self._coming[self._arrived])
            if self._arrival[i] > now:
                break
            heapq.heappush(self._heap, (self._urgency(i), i))
            self._arrived += 1
        while (head := self._head()) is not None and head[0].deadline < now:
            if self._heap and head is self._heap[0]:
                heapq.heappop(self._heap)
            else:
                self._cursor += 1
            self._set_aside(head)

    def _set_aside(self, entry: tuple[Urgency, int]) -> None:
        urgency, i = entry
        if self._late_rule == "drop":
            self._expired.append(urgency.row_index)
        else:
            heapq.heappush(self._overdue, (urgency._replace(late=True), i))

    def _head(self) -> tuple[Urgency, int] | None:
        """The most urgent row that is there and not late."""
        heap = self._heap[0] if self._heap else None
        if self._cursor == len(self._sorted):
            return heap
        i = int(self._sorted[self._cursor])
        first = (self._urgency(i), i)
        return heap if heap is not None and heap < first else first

    def _urgency(self, i: int) -> Urgency:
        arrival, deadline = float(self._arrival[i]), float(self._deadline[i])
        return Urgency(False, deadline, int(self._priority[i]), arrival, int(self._rows[i]))
