"""What the engine knows beyond rows and pages: who may have what, who can still make it, what was decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from specbatch.config import JobConfig
from specbatch.draft.combination import has_free_drafts
from specbatch.hardware.corrected import CorrectedCosts
from specbatch.ledger import EngineStats
from specbatch.policy import Decision, decodes, rests_rows
from specbatch.policy.costed import MIN_PROGRESS
from specbatch.policy.journal import Journal, StepRecord
from specbatch.rows import Row
from specbatch.schedule.foresight import Broken, Foresight
from specbatch.schedule.overload import OverloadRules
from specbatch.schedule.quota import Quotas
from specbatch.schedule.shares import Shares
from specbatch.schedule.turns import Turns
from specbatch.schedule.urgency import Urgency, open_promises
from specbatch.table.decisions import Entry
from specbatch.verify import Verdict
from specbatch.work import Work

_NEVER = 2**62
_PRESSED = 32
"""Steps for which rows that are lost make way after another one has been lost: there is too much to do."""


class Notes(Protocol):
    """The part of a host that this needs."""

    def now(self) -> float:
        """Seconds on the run clock."""
        ...

    def note(self, entry: Entry) -> None:
        """Something was decided."""
        ...


class Oversight:
    """Foresight, rules of overload, shares, quotas and the journal of a run.

    Args:
        job: Tiers, owners and policy.
        costs: What steps cost here, corrected while it runs; ``None`` without a profile.
        drafter: What drafts, by name; empty for nobody.
        used: Verified tokens of earlier attempts by owner.
        host: Clock, and where decisions go.
    """

    def __init__(
        self,
        job: JobConfig,
        costs: CorrectedCosts | None,
        drafter: str,
        used: Mapping[str, int],
        host: Notes,
    ) -> None:
        self._tiers, self._costs = job.tiers, costs
        self._foresight = Foresight(costs, job.prefill_chunk, bool(drafter), has_free_drafts(drafter))
        self._rules, self._turns = OverloadRules(job.tiers), Turns(self._foresight)
        self._shares = Shares({name: t.share for name, t in job.tiers.items() if t.share is not None})
        self._max_rows = job.max_rows_in_flight
        self.quotas = Quotas(job.owners, used)
        self.journal = Journal(job.decisions, host.note, host.now)
        self.rests = rests_rows(job.policy)
        self.behind: Collection[str] = ()
        self._fallbacks: dict[str, int] = {}
        self._pressed = 0

    def promised_progress(self, row: Row) -> int:
        """In how many steps a row in flight was promised to advance once; in each, while its tier is owed."""
        if row.tier in self.behind:
            return 1
        usual = MIN_PROGRESS if row.standing.lost else _NEVER
        return self._tiers[row.tier].min_progress or usual

    def min_progress(self, row: Row) -> int:
        """The same where no policy may have rows sit out for longer than ``MIN_PROGRESS``."""
        return min(self.promised_progress(row), self._tiers[row.tier].min_progress or MIN_PROGRESS)

    def movable(self, row: Row) -> bool:
        """Whether a row may lose its place: not where progress or a share was promised, or it waited long."""
        if row.admitted_at is not None and self.overstays(row, row.admitted_at):
            return False
        return self._tiers[row.tier].min_progress is None and row.tier not in self.behind

    def overstays(self, row: Row, at: float) -> bool:
        """Whether a row that waits until then, seconds on the run clock, waits longer than its tier says."""
        longest = self._tiers[row.tier].max_wait
        return longest is not None and row.prompt.arrival + longest < at

    def judge(
        self, row: Row, now: float, running: Sequence[Row] | None, waiting: Urgency | None = None
    ) -> Broken | None:
        """Apply the rules of a row's tier as long as there is a promise that cannot be kept.

        Args:
            row: Its standing may change.
            now: Seconds on the run clock.
            running: Rows that it would join; ``None`` when it has begun, and is judged as if alone.
            waiting: Place of the next row that waits.

        Returns:
            What it is to be rejected for, if so; else ``None``.
        """
        beside = None if running is None else self._company(running)
        backlog = waiting is not None and not (self.rests and math.isinf(waiting.due))
        while True:
            broken = self._foresight.hopeless(row, now)
            if broken is None and beside is not None and not self.waits(row, now, running or ()):
                broken = self._foresight.crowded(row, now, beside, backlog)
            if broken is None:
                return None
            rule = self._rules.apply(row, broken)
            self._pressed = _PRESSED if self._costs is not None else 0
            self.journal.event(row, rule, broken.miss)
            if rule == "reject":
                return broken

    def waits(self, row: Row, now: float, running: Sequence[Row]) -> bool:
        """Whether a row that has not begun had better begin when rows in a hurry have ended."""
        return self.rests and self._turns.waits(row, now, [each for each in running if open_promises(each)])

    def owed_places(self, running: Sequence[Row]) -> list[str]:
        """Tiers that are owed tokens and have too few rows in flight for them, the one owed most first."""
        flying = Counter(row.tier for row in running)
        return [tier for tier in self.behind if flying[tier] < self._shares.rows_due(tier)]

    def sent_back(self, row: Row) -> None:
        """A row that was judged has not come in."""
        self._turns.forget(row)

    def harms(self, row: Row, now: float, running: Sequence[Row]) -> bool:
        """Whether a row would make others break their promises by joining them.

        Looked at are rows that have nothing to win, and those with a deadline: theirs is later than those of
        the rows in flight, and it may still be met when some of these have ended.
        """
        company = self._company(running)
        if row.standing.lost:
            return self._hurts([row], now, company)
        if "deadline" not in open_promises(row):
            return False
        return self._foresight.would_hurt([row], now, company, self._shares.claimed)

    def spare(self, work: Sequence[Work], now: float) -> list[Work]:
        """A step without rows that have nothing to win, where they would make others break their promises."""
        idle = [item.row for item in work if item.row.standing.lost and not open_promises(item.row)]
        beside = self._company([item.row for item in work if item.row not in idle])
        if not idle or not self._hurts(idle, now, beside):
            return list(work)
        return [item for item in work if item.row not in idle]

    def _hurts(self, idle: Sequence[Row], now: float, beside: Sequence[Row]) -> bool:
        """Whether these are in the way of rows with promises; while rows are being lost they always are."""
        if self._pressed > 0 and any(map(open_promises, beside)):
            return True
        return self._foresight.would_hurt(idle, now, beside)

    def learn(
        self,
        step: tuple[int, float, float],
        work: Sequence[Work],
        verdicts: Sequence[Verdict | None],
        decided: tuple[Mapping[Row, Decision], str],
        tiers: tuple[Collection[str], Collection[str]],
    ) -> list[str]:
        """See a step, before its rows are told.

        Args:
            step: Its number, the run clock in seconds, and how long it took.
            work: What it did.
            verdicts: One for each item.
            decided: Decisions of the policy, and why it fell back to plain decoding, if it did.
            tiers: Those of rows in flight, and those of rows that wait.

        Returns:
            Owners who have used up their quota with it.
        """
        self._foresight.learn(work, verdicts)
        self._pressed -= self._pressed > 0
        pairs = [(item, v) for item, v in zip(work, verdicts, strict=True) if decodes(item)]
        tokens: dict[str, int] = {}
        spent = []
        for item, _ in pairs:
            count = 1 + item.drafted
            tokens[item.row.tier] = tokens.get(item.row.tier, 0) + count
            if self.quotas.spend(item.row.prompt.owner, count) and item.row.prompt.owner is not None:
                spent.append(item.row.prompt.owner)
        self._shares.count(tokens, *tiers)
        self.behind = self._shares.behind()
        if pairs:
            self._write_down(step, pairs, decided, sum(item.count for item in work) - len(pairs))
        return spent

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        self._foresight.ended(row)
        self._turns.forget(row)
        self.journal.ended(row)

    def report(self, stats: EngineStats) -> None:
        """Sum up."""
        stats.entitled_tokens, stats.achieved_tokens = self._shares.entitled, self._shares.achieved
        stats.fallback_steps = sum(self._fallbacks.values())
        stats.fallback = max(self._fallbacks, key=self._fallbacks.__getitem__, default="")
        if self._costs is None:
            stats.overload_notice = "whether promises can be kept is not judged ahead: no profile was opened"
        else:
            stats.profile_drift = self._costs.drift

    def _company(self, running: Sequence[Row]) -> list[Row]:
        """Rows that a row shares its steps with: under a policy that lets others rest, those in a hurry."""
        company = [row for row in running if open_promises(row) or not (self.rests or row.standing.lost)]
        return company[: self._max_rows - 1]

    def _write_down(
        self,
        step: tuple[int, float, float],
        pairs: Sequence[tuple[Work, Verdict | None]],
        decided: tuple[Mapping[Row, Decision], str],
        prefill: int,
    ) -> None:
        number, now, seconds = step
        decisions, fallback = decided
        if fallback:
            self._fallbacks[fallback] = self._fallbacks.get(fallback, 0) + 1
        work, verdicts = [item for item, _ in pairs], [verdict for _, verdict in pairs]
        real_gain = None if self._costs is None else 0.0
        if self._costs is not None and seconds > 0.0 and any(item.drafted for item in work):
            context = sum(item.row.committed for item in work) / len(work)
            plain_s = self._costs.step_s(len(work), context, len(work), prefill)
            gained = sum(1 + len(verdict.path) for verdict in verdicts if verdict is not None)
            real_gain = (gained / seconds) / (len(work) / plain_s) - 1.0
        self.journal.step(StepRecord(number, now, work, verdicts, decisions, fallback, real_gain))
