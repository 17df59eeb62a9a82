"""The engine's loop over one feed: admit, plan, compute, choose, commit, until no row is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from specbatch.config import JobConfig
from specbatch.engine.commit import Voice, commit_tokens, failed_answer, finished_answer
from specbatch.engine.executor import Executor
from specbatch.engine.feed import Feed, Host
from specbatch.errors import RowFault
from specbatch.hardware.memory import peak_resident_bytes
from specbatch.ledger import EngineStats, Ledger
from specbatch.models.config import ModelConfig
from specbatch.pages import PagePool
from specbatch.progress import Snapshot
from specbatch.rows import FinishReason, Row, Status
from specbatch.sampling import Draw
from specbatch.schedule.scheduler import Limits, Scheduler
from specbatch.schedule.waiting import WaitingRows
from specbatch.step import Work, build_step
from specbatch.text.tokenizer import Tokenizer

_NO_HISTORY = torch.empty(0, dtype=torch.int64)
_LONGEST_NAP_S = 0.2


@dataclass(frozen=True, slots=True)
class Target:
    """The model as the loop sees it."""

    config: ModelConfig
    tokenizer: Tokenizer
    executor: Executor


class Loop:
    """One run over one feed.

    Args:
        target: Model and executor.
        job: Limits, seed, tiers, the rule for late rows.
        feed: The rows.
        host: Clock and callbacks.
    """

    def __init__(self, target: Target, job: JobConfig, feed: Feed, host: Host) -> None:
        self._target, self._job, self._feed, self._host = target, job, feed, host
        store = target.executor.store
        self._pool = PagePool(store.num_pages, store.page_size, job.prefix_sharing)
        limits = Limits(job.max_rows_in_flight, job.prefill_chunk)
        self._scheduler = Scheduler(self._pool, limits, lambda tier: job.tiers[tier].priority)
        self._waiting = WaitingRows(feed.rows, feed.arrival, feed.deadline, feed.priority, job.late)
        self._voices: dict[int, Voice] = {}
        self.stats = EngineStats(
            kv_bytes_per_token=store.bytes_per_token,
            kv_page_size=store.page_size,
            kv_pages_total=self._pool.capacity,
        )
        self._ledger = Ledger(target.config, self.stats)

    def run(self) -> EngineStats:
        """Answer every row, or leave after the step in which the host asks for it."""
        while self.rows_left() and not self._host.stop_requested():
            self.step()
        self.stats.peak_resident_bytes = peak_resident_bytes()
        return self.stats

    def rows_left(self) -> int:
        """Rows that have not ended."""
        return len(self._waiting) + len(self._scheduler.running) + len(self._scheduler.parked)

    def step(self) -> None:
        """One iteration."""
        with self._timed("plan_s"):
            self._expire()
            self._admit()
            work = self._scheduler.plan(self._host.now())
        if not work:
            self._wait()
            return
        tokens = self._compute(work)
        with self._timed("commit_s"):
            self._commit(work, tokens)
        self._report()

    def check(self) -> None:
        """Assert the invariants of scheduler and pool."""
        self._scheduler.check()

    def _expire(self) -> None:
        """Under ``late = "drop"``, end the rows whose deadline has passed."""
        if self._job.late != "drop":
            return
        now = self._host.now()
        fault = RowFault("deadline_passed", "the deadline passed before the row was finished (late = drop)")
        for row_index in self._waiting.take_expired(now):
            self._host.refuse(row_index, Status.EXPIRED, fault)
        scheduler = self._scheduler
        for row in [*scheduler.running, *scheduler.parked]:
            if scheduler.urgency(row, now).late:
                self._end(row)
                self._host.deliver(failed_answer(row, Status.EXPIRED, fault, now))

    def _admit(self) -> None:
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
        try:
            prompt = self._feed.fetch(row_index)
            longest = len(prompt.token_ids) + prompt.params.max_tokens
            if self._pool.pages_for(longest) > self._pool.capacity:
                raise RowFault(
                    "kv_memory_exceeded",
                    f"prompt and max_tokens need {longest} tokens of K/V memory, there is room for "
                    f"{self._pool.capacity * self._pool.page_size}; raise --kv-memory or lower max_tokens",
                )
        except RowFault as fault:
            self._host.refuse(row_index, Status.REJECTED, fault)
            return
        row = Row(prompt)
        self._voices[row_index] = Voice.of(row, self._job.seed, self._target.tokenizer)
        self._scheduler.park(row)

    def _wait(self) -> None:
        """Nothing to compute: rest until the next row arrives."""
        arrival = self._waiting.next_arrival()
        if arrival is not None:
            self._host.sleep(min(_LONGEST_NAP_S, max(0.0, arrival - self._host.now())))
            self._report()

    def _compute(self, work: Sequence[Work]) -> list[int | None]:
        """Run the target and choose a token for every row that is due one."""
        with self._timed("plan_s"):
            step = build_step(work, self._pool.page_size)
            self._ledger.record_pass(work)
        with self._timed("pass_s"):
            logits = self._target.executor.forward(step)
        with self._timed("choose_s"):
            draws = [self._draw(item.row) for item in work if item.yields_token]
            return self._target.executor.choose(logits, draws) if draws else []

    def _draw(self, row: Row) -> Draw:
        params = row.prompt.params
        history = _NO_HISTORY
        if params.repetition_penalty != 1.0:
            history = torch.tensor(sorted({*row.prompt.token_ids, *row.output}))
        return Draw(params, self._voices[row.prompt.row_index].stream, row.committed, history)

    def _commit(self, work: Sequence[Work], tokens: Sequence[int | None]) -> None:
        """Move rows forward; deliver those that ended."""
        now = self._host.now()
        self.stats.kv_pages_peak = max(self.stats.kv_pages_peak, self._pool.in_use)
        chosen = iter(tokens)
        for item in work:
            yields = item.yields_token
            self._scheduler.commit(item)
            if yields:
                self._settle(item.row, next(chosen), now)

    def _settle(self, row: Row, token: int | None, now: float) -> None:
        """Commit one row's token, and end the row where that is its last."""
        voice = self._voices[row.prompt.row_index]
        if token is None:
            self._poisoned(row, now)
            return
        reason: FinishReason | None = commit_tokens(row, voice, [token], self._target.config.eos_ids)
        self.stats.output_tokens += 1
        if row.first_token_at is None:
            row.first_token_at = now
        if reason is not None:
            self._end(row)
            self._host.deliver(finished_answer(row, voice, reason, self._target.tokenizer, now))

    def _poisoned(self, row: Row, now: float) -> None:
        """End a row whose logits hold NaN, and keep its pages from spreading it."""
        own = self._pool.exclusive(row.pages)
        self._pool.forget(row.pages)
        self._target.executor.store.scrub(own)
        self._end(row)
        fault = RowFault("nan_logits", "the model's output was not a number at this row; check the weights")
        self._host.deliver(failed_answer(row, Status.ERROR, fault, now))

    def _end(self, row: Row) -> None:
        """Take a row out of the engine."""
        del self._voices[row.prompt.row_index]
        self.stats.preemptions += row.num_preemptions
        self.stats.recomputed_tokens += row.recomputed_tokens
        self._scheduler.remove(row)

    def _report(self) -> None:
        scheduler = self._scheduler
        waiting = len(self._waiting) + len(scheduler.parked)
        self._host.tick(Snapshot("running", len(scheduler.running), waiting, self.stats.output_tokens))

    @contextmanager
    def _timed(self, field: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        setattr(self.stats, field, getattr(self.stats, field) + time.perf_counter() - started)
