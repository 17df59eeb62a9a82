"""Which rows come in: waiting, fetched, refused, admitted, expired."""

from __future__ import annotations

from collections.abc import Callable

from specbatch.config import JobConfig
from specbatch.engine.commit import failed_answer
from specbatch.engine.feed import Feed, Host
from specbatch.errors import RowFault
from specbatch.rows import Row, Status
from specbatch.schedule.scheduler import Scheduler
from specbatch.schedule.waiting import WaitingRows, deadline_passed

_LONGEST_NAP_S = 0.2


class Admission:
    """The door between a feed and the rows in flight.

    Args:
        job: Limits and the rule for late rows.
        feed: The rows.
        host: Clock, and who is told about rows that never come in.
        scheduler: Where rows are parked and put in flight.
        begin: Told of each row that has been tokenised.
        end: Takes a row out of the engine.
    """

    def __init__(
        self,
        job: JobConfig,
        feed: Feed,
        host: Host,
        scheduler: Scheduler,
        begin: Callable[[Row], None],
        end: Callable[[Row], None],
    ) -> None:
        self._job, self._feed, self._host, self._scheduler = job, feed, host, scheduler
        self._begin, self._end = begin, end
        self._waiting = WaitingRows(feed.rows, feed.arrival, feed.deadline, feed.priority, job.late)

    def __len__(self) -> int:
        """Rows that have not been fetched."""
        return len(self._waiting)

    def expire(self) -> None:
        """Under ``late = "drop"``, end the rows whose deadline has passed."""
        if self._job.late != "drop":
            return
        now = self._host.now()
        fault = deadline_passed()
        for row_index in self._waiting.take_expired(now):
            self._host.refuse(row_index, Status.EXPIRED, fault)
        scheduler = self._scheduler
        for row in [*scheduler.running, *scheduler.parked]:
            if scheduler.urgency(row, now).late:
                self._end(row)
                self._host.deliver(failed_answer(row, Status.EXPIRED, fault, now))

    def admit(self) -> None:
        """Put the most urgent rows in flight while there is room."""
        while len(self._scheduler.running) < self._job.max_rows_in_flight:
            row = self._most_urgent()
            if row is None:
                return
            if not self._scheduler.has_room_for(row):
                return
            self._scheduler.start(row)
            if row.admitted_at is None:
                row.admitted_at = self._host.now()
                row.cached_prompt_tokens = row.cached

    def wait(self) -> bool:
        """Rest until the next row arrives; false when none will."""
        arrival = self._waiting.next_arrival()
        if arrival is None:
            return False
        self._host.sleep(min(_LONGEST_NAP_S, max(0.0, arrival - self._host.now())))
        return True

    def _most_urgent(self) -> Row | None:
        """The next row to admit, parked with its tokens; ``None`` when nothing waits."""
        while True:
            now = self._host.now()
            parked = self._scheduler.next_parked(now)
            first = self._waiting.peek(now)
            if first is None or (parked is not None and self._scheduler.urgency(parked, now) <= first):
                return parked
            self._fetch(self._waiting.take(now))

    def _fetch(self, row_index: int) -> None:
        """Read one row and park it, or refuse it."""
        pool = self._scheduler.pool
        try:
            prompt = self._feed.fetch(row_index)
            longest = len(prompt.token_ids) + prompt.params.max_tokens
            if pool.pages_for(longest) > pool.capacity:
                raise RowFault(
                    "kv_memory_exceeded",
                    f"prompt and max_tokens need {longest} tokens of K/V memory, there is room for "
                    f"{pool.capacity * pool.page_size}; raise --kv-memory or lower max_tokens",
                )
        except RowFault as fault:
            self._host.refuse(row_index, Status.REJECTED, fault)
            return
        row = Row(prompt)
        self._begin(row)
        self._scheduler.park(row)
