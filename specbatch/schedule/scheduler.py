"""Iteration-level scheduling: which rows run, and how many tokens of each a pass computes.

One rule instead of phases: a row's work is what is committed but not cached. Rows that need one
token (decoding) come first, then prompt chunks by urgency within the step's prefill budget. A row
that needs a page when none is left takes those of the least urgent row, which is parked and computed
again later (never one more urgent than itself). Drafted tokens live on pages that are free anyway,
for one step: nobody is preempted for them. A row that waits may take the place of a less urgent one,
and a row that has stood still for as long as it may takes part in the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specbatch.pages import PagePool
from specbatch.rows import Row
from specbatch.schedule.urgency import Urgency, open_promises, urgency_of
from specbatch.tree import TokenTree
from specbatch.work import PIECE, Work

MOST_MOVES = 3
"""A row that has lost its pages so often keeps its place against rows that wait, unless it is lost anyway."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step.

    Attributes:
        max_rows: Rows in flight.
        prefill_chunk: Tokens that rows with more than one token to compute may take together.
        draft_nodes: Drafted tokens of a row for which room is kept as long as it has promises.
        min_progress: For each row in how many steps it advances at least once.
    """

    max_rows: int
    prefill_chunk: int
    draft_nodes: int = 0
    min_progress: Callable[[Row], int] = lambda _: 2**62


class Scheduler:
    """Rows in flight and rows parked.

    Args:
        pool: The K/V pages.
        limits: Bounds of a step.
        priority: Tier name → priority.
        on_preempt: Told of each row that loses its pages.
    """

    def __init__(
        self,
        pool: PagePool,
        limits: Limits,
        priority: Callable[[str], int],
        on_preempt: Callable[[Row], None] = lambda _: None,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.running: list[Row] = []
        self.parked: list[Row] = []
        self._still: dict[Row, int] = {}  # steps since the row last advanced
        self._priority, self._on_preempt = priority, on_preempt

    def urgency(self, row: Row, now: float) -> Urgency:
        """The row's place in every queue."""
        return urgency_of(row, self._priority, now)

    def has_room_for(self, row: Row) -> bool:
        """Whether a row's committed tokens and the next one fit beside what is already promised."""
        return self._fits(row, [])

    def yields_to(self, place: Urgency, now: float) -> bool:
        """Whether some row in flight has less of a claim."""
        return any(self.urgency(row, now).claim > place.claim for row in self.running)

    def make_way(self, row: Row, now: float, movable: Callable[[Row], bool]) -> bool:
        """Preempt rows that are less urgent than this one, the least urgent first, as few as will do.

        Args:
            row: Waits and is not in flight.
            now: Seconds on the run clock.
            movable: Which rows may be preempted.

        Returns:
            Whether there is room now; if not, nobody has moved.
        """
        claim = self.urgency(row, now).claim
        places = {
            each: self.urgency(each, now)
            for each in self.running
            if each.num_preemptions < MOST_MOVES or each.standing.lost
        }
        below = [each for each, place in places.items() if place.claim > claim and movable(each)]
        below.sort(key=places.__getitem__, reverse=True)
        moved: list[Row] = []
        while not self._fits(row, moved):
            if len(moved) == len(below):
                return False
            moved.append(below[len(moved)])
        for each in moved:
            self._preempt(each)
        return True

    def park(self, row: Row) -> None:
        """Keep a tokenised row that cannot run yet."""
        self.parked.append(row)

    def start(self, row: Row) -> None:
        """Put a row in flight, with every page of its text that is already computed.

        At least one token is left to compute, since the next token needs its logits.
        """
        if row in self.parked:
            self.parked.remove(row)
        tokens = row.tokens(0, row.committed)
        row.pages = self.pool.match(tokens, len(tokens) - 1)
        row.cached = len(row.pages) * self.pool.page_size
        self.running.append(row)

    def remove(self, row: Row) -> None:
        """Let go of a row, in flight or parked, and of its pages."""
        (self.running if row in self.running else self.parked).remove(row)
        self._still.pop(row, None)
        self.pool.release(row.pages)
        row.pages = []

    def plan(self, now: float) -> list[Work]:
        """Choose the work of one step; every row of it owns the pages it needs.

        Returns:
            Empty only when nothing is in flight.
        """
        rows = sorted(self.running, key=lambda row: self.urgency(row, now))
        work: list[Work] = []
        budget = self.limits.prefill_chunk
        prompts = [r for r in rows if _pending(r) > 1]
        due = [r for r in prompts if self._is_due(r)]
        for row in [r for r in rows if _pending(r) == 1] + due + [r for r in prompts if r not in due]:
            fair = -(-budget // (len(due) - due.index(row))) if row in due else budget
            count = min(_pending(row), fair) if _pending(row) > 1 else 1
            if row not in self.running or count == 0:
                continue
            safe = [item.row for item in work]
            if self._grow(row, row.cached + count, safe, now):
                work.append(Work(row, count))
                budget -= count if count > 1 else 0
        return work

    def keep_moving(self, plan: Sequence[Work], work: Sequence[Work]) -> list[Work]:
        """Have rows take part in a step that have stood still for as long as they may.

        Where they are prompts, together they get on by ``PIECE`` tokens or by one each: rows that came
        in together are due together, and the others are in a hurry.

        Args:
            plan: What could be done.
            work: The part of it that was to be done.

        Returns:
            That part as it is and those rows, in the order of the plan.
        """
        chosen = {item.row: item for item in work}
        due = [item for item in plan if item.row not in chosen and self._is_due(item.row)]
        fair = max(1, PIECE // max(1, sum(item.count > 1 for item in due)))
        chosen |= {item.row: replace(item, count=min(item.count, fair)) for item in due}
        kept = [chosen[item.row] for item in plan if item.row in chosen]
        moving = {item.row for item in kept}
        self._still = {row: 0 if row in moving else self._still.get(row, 0) + 1 for row in self.running}
        return kept

    def draft_rooms(self, work: Sequence[Work], wanted: Sequence[int]) -> list[int]:
        """How many drafted tokens of each row there is memory for, the first rows first.

        Args:
            work: The plan.
            wanted: For each of its rows how many there may be.

        Returns:
            At most as many; all of them fit beside each other.
        """
        size, free, rooms = self.pool.page_size, self.pool.available, []
        for item, count in zip(work, wanted, strict=True):
            if not count:  # a prompt whose pages are not all there yet, for one
                rooms.append(0)
                continue
            own = len(item.row.pages) * size - item.row.committed
            pages = min(free, self.pool.pages_for(max(0, count - own)))
            free -= pages
            rooms.append(min(count, own + pages * size))
        return rooms

    def add_trees(self, work: Sequence[Work], trees: Sequence[TokenTree | None]) -> list[Work]:
        """Give the drafted tokens of each row pages, as far as there are any that nobody else holds.

        Args:
            work: A plan.
            trees: For each of its rows what is to be verified with it, if anything.

        Returns:
            The plan with these trees, or what fits of them: the likeliest nodes.
        """
        return [self._add_tree(item, tree) for item, tree in zip(work, trees, strict=True)]

    def commit(self, work: Work, accepted: int = 0) -> None:
        """Record that the pass computed this work: tokens are cached, full pages shared, others given back.

        Args:
            work: The work; the row's output already holds what was accepted.
            accepted: Drafted tokens that became text and whose keys and values stand behind its own.
        """
        row = work.row
        before = row.cached
        row.recomputed_tokens += max(0, min(row.high_water, before + work.count) - before)
        row.cached = before + work.count + accepted
        row.high_water = max(row.high_water, row.cached)
        size = self.pool.page_size
        if row.cached // size > before // size:
            self.pool.publish(row.pages, row.tokens(0, row.cached), before // size)
        kept = self.pool.pages_for(row.committed)
        if len(row.pages) > kept:
            self.pool.release(row.pages[kept:])
            del row.pages[kept:]

    def check(self) -> None:
        """Assert the invariants of pool and rows (tests run it after every step)."""
        self.pool.check([row.pages for row in (*self.running, *self.parked)])
        assert len(self.running) <= self.limits.max_rows, "more rows in flight than allowed"
        for row in self.running:
            assert row.cached < row.committed, "a row in flight has nothing to compute"
            assert row.cached <= len(row.pages) * self.pool.page_size, "cached tokens without a page"
            assert len(row.pages) <= self.pool.pages_for(row.committed), "a row keeps pages it has no use for"
        for row in self.parked:
            assert not row.pages, "a parked row holds pages"
            assert not row.cached, "a parked row has cached tokens"

    def _fits(self, row: Row, without: Sequence[Row]) -> bool:
        """Whether there is room for a row when some others have left; room for drafts is kept free."""
        staying = [each for each in self.running if each not in without]
        if len(staying) >= self.limits.max_rows:
            return False
        pool = self.pool
        freed = sum(len(pool.exclusive(each.pages)) for each in without)
        promised = sum(pool.pages_for(each.committed + 1) - len(each.pages) for each in staying)
        drafts = pool.pages_for(self.limits.draft_nodes) * sum(map(bool, map(open_promises, staying)))
        return pool.available + freed - promised - drafts >= pool.pages_for(row.committed + 1)

    def _is_due(self, row: Row) -> bool:
        """Whether the row must not stand still in this step."""
        return self._still.get(row, 0) + 1 >= self.limits.min_progress(row)

    def _grow(self, row: Row, tokens: int, safe: list[Row], now: float) -> bool:
        """Give a row pages for its first ``tokens`` tokens; false when it had to be parked."""
        missing = self.pool.pages_for(tokens) - len(row.pages)
        while missing > self.pool.available:
            others = [r for r in self.running if r not in safe]
            victim = max(others, key=lambda r: self.urgency(r, now))
            self._preempt(victim)
            if victim is row:
                return False
        row.pages += self.pool.allocate(max(0, missing)) or []
        return True

    def _add_tree(self, work: Work, tree: TokenTree | None) -> Work:
        if tree is None:
            return work
        row = work.row
        room = (len(row.pages) + self.pool.available) * self.pool.page_size - row.committed
        fitting = tree.best(room)
        if not fitting.size:
            return work
        missing = self.pool.pages_for(row.committed + fitting.size) - len(row.pages)
        row.pages += self.pool.allocate(max(0, missing)) or []
        return replace(work, tree=fitting)

    def _preempt(self, row: Row) -> None:
        self._on_preempt(row)
        self.remove(row)
        row.cached = 0
        row.num_preemptions += 1
        self.parked.append(row)


def _pending(row: Row) -> int:
    """Tokens committed but not cached."""
    return row.committed - row.cached
