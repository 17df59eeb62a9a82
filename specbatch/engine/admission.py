"""Which rows come in: waiting, fetched, judged, refused, admitted, expired."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from specbatch.config import JobConfig
from specbatch.engine.commit import failed_answer
from specbatch.engine.feed import Feed, Host
from specbatch.engine.oversight import Oversight
from specbatch.errors import RowFault
from specbatch.rows import Prompt, Row, Standing, Status
from specbatch.schedule.overload import overloaded
from specbatch.schedule.scheduler import Scheduler
from specbatch.schedule.urgency import Urgency, deadline_in_force, deadline_passed, open_promises
from specbatch.schedule.waiting import WaitingRows
from specbatch.slo import Slo

_LONGEST_NAP_S = 0.2
_ASIDE = 4
"""Rows that are passed over in a step, at most: looking at each takes time, and it is tokenised by then."""


class Rooms(Protocol):
    """Who takes rows in and lets go of them."""

    def begin(self, row: Row) -> None:
        """A row has been tokenised and will be decoded."""
        ...

    def end(self, row: Row) -> None:
        """Take a row out, in flight or parked."""
        ...


class Admission:
    """The door between a feed and the rows in flight.

    A free place belongs to the row that has waited for as long as its tier allows, then to the tier that
    has had less than its share, then to the most urgent row. Where no place is free, that row takes the
    one of a less urgent row. A row whose promises cannot be kept is treated as its tier says.

    Args:
        job: Limits, tiers and the rule for late rows.
        feed: The rows.
        host: Clock, and who is told about rows that never come in.
        scheduler: Where rows are parked and put in flight.
        oversight: Foresight, shares, quotas and rules.
        rooms: Takes rows in and lets go of them.
    """

    def __init__(
        self, job: JobConfig, feed: Feed, host: Host, scheduler: Scheduler, oversight: Oversight, rooms: Rooms
    ) -> None:
        self._job, self._feed, self._host, self._scheduler = job, feed, host, scheduler
        self._oversight, self._rooms = oversight, rooms
        self._tiers = list(job.tiers)
        self._waiting = WaitingRows(feed, job.late, [tier.max_wait for tier in job.tiers.values()])
        self._sent_back: dict[int, tuple[Standing, Slo]] = {}

    def __len__(self) -> int:
        """Rows that have not been fetched."""
        return len(self._waiting)

    def tiers_waiting(self) -> set[str]:
        """Tiers of which rows wait to be admitted."""
        here = {self._tiers[tier] for tier in self._waiting.tiers_waiting(self._host.now())}
        return here | {row.tier for row in self._scheduler.parked}

    def review(self) -> None:
        """End rows whose deadline has passed under ``late = "drop"``; judge again those that were let in."""
        now, scheduler = self._host.now(), self._scheduler
        if self._job.late == "drop":
            for row_index in self._waiting.take_expired(now):
                self._host.refuse(row_index, Status.EXPIRED, deadline_passed())
            for row in [*scheduler.running, *scheduler.parked]:
                if deadline_in_force(row) < now:
                    self._finish(row, Status.EXPIRED, deadline_passed(), now)
        for row in [*scheduler.running, *scheduler.parked]:
            if open_promises(row) and (broken := self._oversight.judge(row, now, None)) is not None:
                self._finish(row, Status.REJECTED, overloaded(broken), now)

    def admit(self, most: int | None = None) -> None:
        """Put rows in flight while there is room, or while one may take the place of another.

        Args:
            most: Rows in flight; ``None``: as many as the job allows.
        """
        scheduler, most = self._scheduler, self._job.max_rows_in_flight if most is None else most
        aside: set[Row] = set()  # rows that would cost others their promises
        while len(aside) < _ASIDE:
            free = len(scheduler.running) < most
            now = self._host.now()
            row = self._due_for_a_place(now) if free else None
            if row is None:
                row = self._most_urgent(free, aside)
                if row is None:
                    return
                if self._stays_out(row, now, aside):
                    aside.add(row)
                    continue
            if not scheduler.has_room_for(row) and not scheduler.make_way(row, now, self._oversight.movable):
                return
            scheduler.start(row)
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

    def demote(self, owner: str) -> None:
        """An owner's quota is used up: rows that were let in before go on under the default tier."""
        for row in [*self._scheduler.running, *self._scheduler.parked]:
            prompt = row.prompt
            if prompt.owner == owner and prompt.tier != self._job.default_tier:
                row.prompt = self._feed.fetch(prompt.row_index, "over_quota")
                row.standing = Standing(miss=row.standing.miss)
                self._oversight.journal.event(row, "demoted", "over_quota")

    def _due_for_a_place(self, now: float) -> Row | None:
        """The row that has waited too long, or one of a tier that is owed tokens; ``None`` without any."""
        overstays = self._oversight.overstays
        long = [row for row in self._scheduler.parked if row.admitted_at is None and overstays(row, now)]
        if long:
            return min(long, key=lambda row: (row.prompt.arrival, row.prompt.row_index))
        for _ in range(_ASIDE):
            if not self._waiting.has_waited_too_long(now):
                break
            row = self._let_in(self._waiting.take_oldest(now), now, lambda row: overstays(row, now))
            if row is not None:
                return row
        for name in self._oversight.owed_places(self._scheduler.running):
            row = self._of_tier(name, now)
            if row is not None:
                return row
        return None

    def _of_tier(self, name: str, now: float) -> Row | None:
        """The most urgent row of a tier."""
        tier, scheduler = self._tiers.index(name), self._scheduler
        for _ in range(_ASIDE):
            own = [row for row in scheduler.parked if row.tier == name]
            parked = min(own, key=lambda row: scheduler.urgency(row, now), default=None)
            first = self._waiting.peek(now, tier)
            if first is None or (parked is not None and scheduler.urgency(parked, now) <= first):
                return parked
            row = self._let_in(self._waiting.take(now, tier), now, lambda row: row.tier == name)
            if row is not None:
                return row
        return None

    def _most_urgent(self, free: bool, aside: Collection[Row]) -> Row | None:
        """The next row to admit, parked with its tokens; ``None`` when nobody may come in.

        Args:
            free: There is a place; otherwise only a row that is more urgent than one in flight comes in.
            aside: Rows that are parked and do not come in now.
        """
        scheduler = self._scheduler
        while True:
            now = self._host.now()
            parked, first = self._next_parked(now, aside), self._waiting.peek(now)
            place = None if parked is None else scheduler.urgency(parked, now)
            best = min((each for each in (place, first) if each is not None), default=None)
            if best is None or not (free or scheduler.yields_to(best, now)):
                return None
            if parked is not None and best == place:
                if parked.admitted_at is not None or self._as_before(parked, now, first):
                    return parked
                continue
            row = self._let_in(self._waiting.take(now), now)
            if row is not None and self._next_parked(now, aside) is row:
                return row

    def _stays_out(self, row: Row, now: float, aside: Collection[Row]) -> bool:
        """Whether a row would cost others their promises, or goes behind one with a deadline that would."""
        if _has_deadline(row) and any(map(_has_deadline, aside)):
            return True
        return self._oversight.harms(row, now, self._scheduler.running)

    def _next_parked(self, now: float, aside: Collection[Row]) -> Row | None:
        """The most urgent of the rows that are parked, not set aside, and do not wait for their turn."""
        scheduler = self._scheduler
        here = (
            row
            for row in scheduler.parked
            if row not in aside
            and (row.admitted_at is not None or not self._oversight.waits(row, now, scheduler.running))
        )
        return min(here, key=lambda row: scheduler.urgency(row, now), default=None)

    def _as_before(self, row: Row, now: float, waiting: Urgency | None) -> bool:
        """Whether a row that was parked before it could begin has as good prospects as it had then.

        Where it has not, it is treated as its tier says.
        """
        before = open_promises(row)
        broken = self._oversight.judge(row, now, self._scheduler.running, waiting)
        if broken is not None:
            self._finish(row, Status.REJECTED, overloaded(broken), now)
        return broken is None and open_promises(row) == before

    def _let_in(
        self, row_index: int, now: float, may_pass: Callable[[Row], bool] = lambda _: False
    ) -> Row | None:
        """Fetch and judge a row, and park it; ``None`` where it is refused, rejected or has to wait again.

        Args:
            row_index: The row that was taken last.
            now: Seconds on the run clock.
            may_pass: Whether it goes before more urgent rows; asked when its tier and promises are settled.
        """
        try:
            row = self._fetch(row_index)
        except RowFault as fault:
            self._host.refuse(row_index, Status.REJECTED, fault)
            return None
        broken = self._oversight.judge(row, now, self._scheduler.running, self._waiting.peek(now))
        if broken is not None:
            self._host.deliver(failed_answer(row, Status.REJECTED, overloaded(broken), now))
            return None
        place, first = self._scheduler.urgency(row, now), self._waiting.peek(now)
        if first is not None and first < place and not may_pass(row):
            self._sent_back[row_index] = (row.standing, row.prompt.slo)
            self._oversight.sent_back(row)
            self._waiting.put_back(place, self._tiers.index(row.tier), deadline_in_force(row))
            return None
        self._rooms.begin(row)
        self._scheduler.park(row)
        return row

    def _fetch(self, row_index: int) -> Row:
        """Read one row, as it was when it was sent back.

        Raises:
            RowFault: It cannot be answered.
        """
        prompt = self._feed.fetch(row_index)
        if self._oversight.quotas.is_over(prompt.owner) and prompt.tier != self._job.default_tier:
            prompt = self._feed.fetch(row_index, "over_quota")
        self._check_memory(prompt)
        known = self._sent_back.pop(row_index, None)
        row = Row(prompt)
        if known is not None and (known[0].tier is not None or known[0].lost):
            standing, slo = known
            row = Row(replace(prompt, slo=slo), standing=standing)
        elif known is None and prompt.demotion is not None:
            self._oversight.journal.event(row, "demoted", prompt.demotion.reason)
        return row

    def _check_memory(self, prompt: Prompt) -> None:
        pool = self._scheduler.pool
        longest = len(prompt.token_ids) + prompt.params.max_tokens
        if pool.pages_for(longest) > pool.capacity:
            raise RowFault(
                "kv_memory_exceeded",
                f"prompt and max_tokens need {longest} tokens of K/V memory, there is room for "
                f"{pool.capacity * pool.page_size}; raise --kv-memory or lower max_tokens",
            )

    def _finish(self, row: Row, status: Status, fault: RowFault, now: float) -> None:
        """End a row that was let in."""
        self._rooms.end(row)
        self._host.deliver(failed_answer(row, status, fault, now))


def _has_deadline(row: Row) -> bool:
    """Whether it has one that can be kept as far as is known."""
    return "deadline" in open_promises(row)
