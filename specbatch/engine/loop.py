"""The engine's loop over one feed: admit, plan, speculate, verify, commit, until no row is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from specbatch.config import JobConfig
from specbatch.draft.combination import has_free_drafts
from specbatch.draft.guarded import GuardedDrafter
from specbatch.engine.admission import Admission
from specbatch.engine.commit import Voice, commit_tokens, failed_answer, finished_answer
from specbatch.engine.economy import Economy
from specbatch.engine.feed import Feed, Host
from specbatch.engine.oversight import Oversight
from specbatch.engine.sharing import StepSharing
from specbatch.engine.speculation import Speculator, observed
from specbatch.engine.target import Target
from specbatch.engine.timing import Timed, observe_pass
from specbatch.engine.verification import Verifier, accepted_moves
from specbatch.errors import RowFault
from specbatch.hardware.corrected import CorrectedCosts
from specbatch.hardware.memory import peak_resident_bytes
from specbatch.ledger import EngineStats, Ledger
from specbatch.pages import PagePool
from specbatch.policy import Calibration, Instruments, make_policy
from specbatch.progress import Snapshot
from specbatch.rows import Row, Status
from specbatch.sampling import Draw
from specbatch.schedule.scheduler import Limits, Scheduler
from specbatch.step import PassOutput, Step, build_step
from specbatch.verify import Verdict
from specbatch.work import Work

__all__ = ["Loop", "Target"]


class Loop:
    """One run over one feed.

    Args:
        target: Model, executor and drafter.
        job: Limits, seed, tiers, the rule for late rows, the policy.
        feed: The rows.
        host: Clock and callbacks.
    """

    def __init__(self, target: Target, job: JobConfig, feed: Feed, host: Host) -> None:
        self._target, self._job, self._host = target, job, host
        store = target.executor.store
        self._pool = PagePool(store.num_pages, store.page_size, job.prefix_sharing)
        self._costs = None if target.profile is None else CorrectedCosts(target.profile)
        name = "" if target.drafter is None else target.drafter.name
        over = self._oversight = Oversight(job, self._costs, name, feed.used, host)
        limits = Limits(job.max_rows_in_flight, job.prefill_chunk, target.draft_nodes, over.promised_progress)
        priority = {name: tier.priority for name, tier in job.tiers.items()}
        self._scheduler = Scheduler(self._pool, limits, priority.__getitem__, self._forget)
        self._admission = Admission(job, feed, host, self._scheduler, over, self)
        self._voices: dict[int, Voice] = {}
        self.stats = EngineStats(
            kv_bytes_per_token=store.bytes_per_token,
            kv_page_size=store.page_size,
            kv_pages_total=self._pool.capacity,
        )
        self._ledger = Ledger(target.config, self.stats)
        self._sharing = StepSharing(self.stats, host)
        self._verifier = Verifier(target.executor, self._draw)
        calibration, free = Calibration(name), has_free_drafts(name)
        self._economy = Economy(job, host, over.journal, self._costs)
        power = self._economy.model
        tools = Instruments(calibration, self._costs, target.no_profile, free, over.min_progress, power)
        self._policy = make_policy(job, tools)
        if self._policy.notice:
            over.journal.run_event("fallback", self._policy.notice)
        self._speculator: Speculator | None = None
        if target.drafter is not None and self._policy.largest is not None:
            self.stats.drafter = name
            drafter = GuardedDrafter(target.drafter, target.config.vocab_size)
            drafter.begin()
            budget = min(job.draft_budget, target.max_drafted)
            self._speculator = Speculator(self._policy, drafter, budget, self._ledger, calibration, host.now)

    def run(self) -> EngineStats:
        """Answer every row, or leave after the step in which the host asks for it."""
        while self.rows_left() and not self._host.stop_requested():
            self.step()
        return self.finish()

    def finish(self) -> EngineStats:
        """Let go of the rows that are left, and sum up."""
        for row in (*self._scheduler.running, *self._scheduler.parked):
            self._forget(row)
        if self._speculator is not None:
            self.stats.draft_faults = sum(self._speculator.drafter.faults.values())
            self.stats.draft_fault = self._speculator.drafter.notice
            self.stats.select_s += self._speculator.select_s
            self.stats.calibration = self._speculator.calibration_report()
        self.stats.policy_notice = self._policy.notice
        self._oversight.report(self.stats)
        self.stats.peak_resident_bytes = peak_resident_bytes()
        return self.stats

    @property
    def costs(self) -> CorrectedCosts | None:
        """Predicted times, and how far they were from observed ones; ``None`` without a profile."""
        return self._costs

    def rows_left(self) -> int:
        """Rows that have not ended."""
        return len(self._admission) + len(self._scheduler.running) + len(self._scheduler.parked)

    def step(self) -> None:
        """One iteration."""
        begun = self._host.now()
        self._sharing.skip()
        with self._timed("plan_s"):
            self._admission.review()
            self._admission.admit(self._economy.rows)
            plan = self._scheduler.plan(self._host.now())
        if not plan:
            if self._admission.wait():
                self._report()
            self._economy.restart()
            return
        with self._timed("select_s"):
            now = self._host.now()
            chosen = self._economy.limited(self._oversight.spare(self._policy.defer(plan, now), now))
            work = self._scheduler.keep_moving(plan, chosen)
            self.stats.rested += len(plan) - len(work)
        with self._timed("draft_s"):
            work = self._speculate(work)
        with self._timed("plan_s"):
            step = build_step(work, self._pool.page_size)
            self._ledger.record_pass(work)
        started = self._host.now()
        with self._timed("pass_s"):
            output = self._target.executor.forward(step)
        with self._timed("choose_s"):
            verdicts = self._verifier.verify(work, output.logits)
        pass_s, drafted = self._host.now() - started, self._speculator
        self._sharing.share(work, verdicts, pass_s, None if drafted is None else drafted.drafting)
        self._learn(work, verdicts, pass_s)
        with self._timed("commit_s"):
            self._commit(work, verdicts)
        self._sharing.skip()
        with self._timed("draft_s"):
            self._observe(work, verdicts, step, output)
        self._sharing.share_observing([item for item in work if item.row.prompt.row_index in self._voices])
        if self._costs is not None:
            draft_s = 0.0 if drafted is None else drafted.draft_s
            self._costs.observe_around(self._host.now() - begun - pass_s - draft_s)
        self._economy.observe(work, {} if drafted is None else drafted.paid, self._host.now() - now)
        self._report()

    def check(self) -> None:
        """Assert the invariants of scheduler, pool and accounts."""
        self._scheduler.check()
        self._ledger.check()
        for row in (*self._scheduler.running, *self._scheduler.parked):
            row.check()

    def _speculate(self, work: list[Work]) -> list[Work]:
        """Let rows draft, and take into the pass what the policy selects and memory holds."""
        if self._speculator is None:
            return work
        self._speculator.allowed = self._economy.draft_budget(work)
        rooms = partial(self._scheduler.draft_rooms, work)
        trees = self._speculator.trees(work, rooms, lambda row: self._voices[row.prompt.row_index].stream)
        before = self._pool.in_use
        work = self._scheduler.add_trees(work, trees)
        self.stats.draft_pages_peak = max(self.stats.draft_pages_peak, self._pool.in_use - before)
        return work

    def _learn(self, work: Sequence[Work], verdicts: Sequence[Verdict | None], pass_s: float) -> None:
        """Costs and calibration see what the step took and what the target decided."""
        observe_pass(self._costs, work, pass_s)
        drafted = self._speculator
        seconds = pass_s + (0.0 if drafted is None else drafted.draft_s)
        why = self._policy.notice or ("" if drafted is None else drafted.fallback)
        step = self.stats.steps, self._host.now(), seconds
        tiers = {row.tier for row in self._scheduler.running}, self._admission.tiers_waiting()
        for owner in self._oversight.learn(step, work, verdicts, (self._policy.decisions, why), tiers):
            self._admission.demote(owner)
        if self._speculator is None:
            return
        self._speculator.learn(work, verdicts)
        if self._costs is not None and self._speculator.spent is not None:
            self._costs.observe_draft(self._speculator.spent, self._speculator.draft_s)
        if self._costs is not None and self._speculator.asking_s is not None:
            self._costs.observe_asking(self._speculator.asking_s)

    def _draw(self, row: Row, path: tuple[int, ...]) -> Draw:
        """How the token behind the row's committed ones and these is chosen."""
        params = row.prompt.params
        history: tuple[int, ...] = ()
        if params.repetition_penalty != 1.0:
            history = tuple(sorted({*row.prompt.token_ids, *row.output, *path}))
        stream = self._voices[row.prompt.row_index].stream
        return Draw(params, stream, row.committed + len(path), history)

    def _commit(self, work: Sequence[Work], verdicts: Sequence[Verdict | None]) -> None:
        """Move rows forward; deliver those that ended."""
        now = self._host.now()
        self.stats.kv_pages_peak = max(self.stats.kv_pages_peak, self._pool.in_use)
        sources, targets = accepted_moves(work, verdicts, self._pool.page_size)
        if sources:
            self._target.executor.store.move(sources, targets)
        for item, verdict in zip(work, verdicts, strict=True):
            if verdict is None:
                self._scheduler.commit(item)
            else:
                self._settle(item, verdict, now)

    def _settle(self, item: Work, verdict: Verdict, now: float) -> None:
        """Commit what the target chose for a row, and end the row where that is its last."""
        row, voice = item.row, self._voices[item.row.prompt.row_index]
        tokens = [] if item.tree is None else item.tree.tokens_of(verdict.path)
        tokens += [] if verdict.bonus is None else [verdict.bonus]
        own = self._pool.exclusive(row.pages) if verdict.bonus is None else []
        before = len(row.output)
        reason = commit_tokens(row, voice, tokens, self._target.config.eos_ids)
        gained = len(row.output) - before
        self.stats.output_tokens += gained
        self._ledger.record_verdict(item, verdict, len(tokens) - gained)
        self._scheduler.commit(item, min(gained, len(verdict.path)))
        if row.first_token_at is None and gained:
            row.first_token_at = now
        if reason is not None:
            self.end(row)
            self._host.deliver(finished_answer(row, voice, reason, self._target.tokenizer, now))
        elif verdict.bonus is None:
            self._poisoned(row, own, now)

    def _poisoned(self, row: Row, own: Sequence[int], now: float) -> None:
        """End a row whose logits hold NaN, and keep its own pages from spreading it."""
        self._pool.forget(row.pages)
        self._target.executor.store.scrub(own)
        self.end(row)
        fault = RowFault("nan_logits", "the model's output was not a number at this row; check the weights")
        self._host.deliver(failed_answer(row, Status.ERROR, fault, now))

    def _observe(
        self, work: Sequence[Work], verdicts: Sequence[Verdict | None], step: Step, output: PassOutput
    ) -> None:
        """Show the drafter what the target stored for the rows still in flight."""
        if self._speculator is None:
            return
        here = [item.row.prompt.row_index in self._voices for item in work]
        found = observed(work, verdicts, step, output.features)
        self._speculator.drafter.observe([each for each, stays in zip(found, here, strict=True) if stays])

    def begin(self, row: Row) -> None:
        """A row has been tokenised and will be decoded."""
        self._voices[row.prompt.row_index] = Voice.of(row, self._job.seed, self._target.tokenizer)

    def end(self, row: Row) -> None:
        """Take a row out, in flight or parked."""
        self._forget(row)
        self._policy.ended(row)
        self._oversight.ended(row)
        if self._speculator is not None:
            self._speculator.ended(row)
        del self._voices[row.prompt.row_index]
        self.stats.preemptions += row.num_preemptions
        self.stats.recomputed_tokens += row.recomputed_tokens
        self._scheduler.remove(row)

    def _forget(self, row: Row) -> None:
        """The drafter lets go of a row that ended or lost its pages."""
        if self._speculator is not None:
            self._speculator.drafter.forget(row)

    def _report(self) -> None:
        scheduler = self._scheduler
        waiting = len(self._admission) + len(scheduler.parked)
        tokens, owners = self.stats.output_tokens, self._oversight.quotas.tokens
        rows, shared = len(scheduler.running), (self.stats.attributed_s, self.stats.attributed_j)
        self._host.tick(Snapshot("running", rows, waiting, tokens, owners, *shared))

    def _timed(self, field: str) -> Timed:
        return Timed(self.stats, field)
