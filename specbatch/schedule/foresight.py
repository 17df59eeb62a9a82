"""Whether a row's promises can be kept: by measured costs, the answers so far, and the rows beside it.

Everything is taken at its best: an answer of usual length (AdaServe judges by the same clock, Li et al.
2026, section 4), drafts that bring what they have brought, and rows beside it that end when they are
expected to. A promise that is broken even so is given up before work is put into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbatch.hardware.cost import Costs
from specbatch.policy.base import decodes
from specbatch.policy.lengths import LengthModel
from specbatch.rows import Row
from specbatch.schedule.acceptance import AT_FIRST, Acceptance
from specbatch.schedule.pace import AT_BEST, AT_WORST, Drafting, has_drafter, token_s
from specbatch.schedule.urgency import open_promises, urgency_of
from specbatch.verify import Verdict
from specbatch.work import Work

USUAL = 0.5
"""An answer is expected to be as long as this share of its tier's answers at most."""

EVIDENCE = 4
"""Answers that must have ended before a length is known: of a tier, or of all where a tier has had fewer."""

_SHARES = 20
"""Shares of accepted tokens are told apart by one in so many."""

_MARGIN = 0.05
"""Share by which times beside others may turn out longer than they are expected to be."""

_CARE = 0.15
"""The same where others would be hurt: machines slow down for a while; who waits may come in soon after."""

_LOOKED_AT = 8
_MOST_CLAIMED = 0.9
_LONG = 2**40
_CONTEXT_STEP = 64
_FORGET_EVERY = 16
_NEWS = 0.1
"""Weight of the last step in the average of prompt tokens per step."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Promises that cannot be kept, and why; see :class:`specbatch.rows.Standing`."""

    lost: frozenset[str]
    miss: str


class Foresight:
    """Judges rows before they begin and while they run.

    Args:
        costs: Predicted times; ``None``: only what is over already is judged.
        chunk: Prompt tokens that a step computes.
        drafts: The policy may draft.
        free: Some drafts cost no pass of a draft model.
    """

    def __init__(self, costs: Costs | None, chunk: int, drafts: bool, free: bool = False) -> None:
        self._costs, self._chunk, self._free = costs, chunk, free
        self._drafts = drafts and costs is not None and has_drafter(costs)
        self._lengths, self._longest, self._ended = LengthModel(USUAL), LengthModel(), dict[str, int]()
        self._all_lengths = LengthModel(USUAL, lambda _: "")
        self._opened: float | None = None  # when rows were first judged
        self._acceptance = Acceptance()
        self._token_s: dict[tuple[int, int, int, float], float] = {}
        self._steps, self._prompts = 0, 0.0

    def learn(self, work: Sequence[Work], verdicts: Sequence[Verdict | None]) -> None:
        """See a step, before its rows are told."""
        self._steps += 1
        prompts = sum(item.count for item in work if not decodes(item))
        self._prompts += _NEWS * (prompts - self._prompts)
        if self._steps % _FORGET_EVERY == 0:
            self._token_s.clear()
        for item, verdict in zip(work, verdicts, strict=True):
            for lengths in (self._lengths, self._longest, self._all_lengths):
                lengths.advance(item.row)
            if item.drafted and verdict is not None:
                self._acceptance.learn(item.row, item.drafted, len(verdict.path))

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        if row.output:
            self._ended[row.prompt.tier] = self._ended.get(row.prompt.tier, 0) + 1
        for lengths in (self._lengths, self._longest, self._all_lengths):
            lengths.ended(row)
        self._acceptance.forget(row)

    def hopeless(self, row: Row, now: float) -> Broken | None:
        """What the row could not be given if it were alone from now on; in flight or waiting.

        Args:
            row: Its promises, and what it has written so far.
            now: Seconds on the run clock.

        Returns:
            ``hopeless`` as the reason only where it could not have been given that from the beginning either.
        """
        self._opened = now if self._opened is None else self._opened
        since = "waited" if row.admitted_at is None else "slow"
        over = _over(row, now)
        if over:
            return Broken(over, since)
        if self._costs is None or not open_promises(row):
            return None
        lost = self._lost_alone(row, now)
        if not lost:
            return None
        as_it_came = Row(row.prompt, standing=row.standing)
        always = self._lost_alone(as_it_came, max(self._opened, row.prompt.arrival))
        return Broken(lost, "hopeless" if lost <= always else since)

    def crowded(self, row: Row, now: float, beside: Sequence[Row], backlog: bool) -> Broken | None:
        """What the row cannot be given beside others, as they come to their ends.

        Args:
            row: A row that is about to begin.
            now: Seconds on the run clock.
            beside: The rows that it shares steps with.
            backlog: Others wait to take the places of those that end.
        """
        if self._costs is None or not open_promises(row):
            return None
        others = [_LONG] * len(beside) if backlog else sorted(self._usual(each) for each in beside)
        return self._beside(row, now, self._usual(row), others, prompts=round(self._prompts))

    def cramped(self, row: Row, now: float, beside: Sequence[Row]) -> bool:
        """Whether a row may be too slow beside some others, if things go as badly as they may.

        Args:
            row: A row that is about to begin.
            now: Seconds on the run clock.
            beside: Rows in flight. Those that were promised half its speed at most can sit every other step
                out for it, and do not count.
        """
        tpot_ms = row.prompt.slo.tpot_ms
        if self._costs is None or tpot_ms is None:
            return False
        fast = [each for each in beside if (each.prompt.slo.tpot_ms or math.inf) < 2.0 * tpot_ms]
        if not fast:
            return False
        each_s = self._token_at(1 + len(fast), row.committed, 0, AT_WORST)
        return each_s > AT_BEST * 1e-3 * tpot_ms

    def _beside(
        self,
        row: Row,
        now: float,
        more: int,
        others: Sequence[int],
        *,
        prompts: int = 0,
        slower: float = 1.0 + _MARGIN,
    ) -> Broken | None:
        """What a row that writes so many more tokens cannot be given beside others, theirs ascending.

        Rows come and go: steps of several rows carry so many prompt tokens. All takes so many times as long
        as expected.
        """

        def seconds(tokens: int) -> float:
            return slower * self._drained_s(row, tokens, others, prompts)

        lost = self._lost(row, now, more, slower * self._prefill_s(row, len(others)), seconds)
        return Broken(lost, "overload") if lost else None

    def would_hurt(
        self, joining: Sequence[Row], now: float, beside: Sequence[Row], claimed: float = 0.0
    ) -> bool:
        """Whether some row could keep its promises, but not if these joined; the tightest rows are looked at.

        Rows are taken to be longer than most, and as long as nothing is known to write as much as they may:
        nobody is to be hurt by accident, and who waits has lost nothing yet.

        Args:
            joining: Rows that might take part.
            now: Seconds on the run clock.
            beside: The rows that do.
            claimed: Share of all tokens that others will have.
        """
        if self._costs is None or not beside or not joining:
            return False
        everybody = [*beside, *joining]
        slower = (1.0 + _CARE) / (1.0 - min(_MOST_CLAIMED, claimed))
        holdups = {row: slower * self._holdup_s(row, len(beside)) for row in everybody}
        begin = now + sum(holdups.values())
        promised = [each for each in beside if open_promises(each)]
        for each in sorted(promised, key=lambda row: self._latest_start(row, now, len(beside)))[:_LOOKED_AT]:
            own, others = self._longest.remaining(each), [other for other in everybody if other is not each]
            left = sorted(map(self._longest.remaining, others))
            together = self._beside(each, begin - holdups[each], own, left, slower=slower)
            if together and not self._beside(each, now, own, []):
                return True
        return False

    def _latest_start(self, row: Row, now: float, rows: int) -> float:
        """When what is left of the row has to begin in steps of so many rows, seconds on the run clock."""
        due, deadline = urgency_of(row, lambda _: 0, now).due, row.prompt.slo.deadline
        if deadline is None or "deadline" in row.standing.lost:
            return due
        return min(due, deadline - self._longest.remaining(row) * self._seconds_of_one(row, rows))

    def _lost_alone(self, row: Row, now: float) -> frozenset[str]:
        """Promises that do not hold in steps of its own."""
        # What was drafted badly so far may be followed by what is drafted well.
        token = AT_BEST * self._seconds_of_one(row, 1, least_share=AT_FIRST)
        prefill_s = AT_BEST * self._prefill_s(row, 0)
        return self._lost(row, now, self._usual(row), prefill_s, lambda tokens: tokens * token)

    def _lost(
        self, row: Row, now: float, more: int, prefill_s: float, seconds: Callable[[int], float]
    ) -> frozenset[str]:
        """Promises that do not hold when the prompt and then tokens take this long, so many more of them."""
        slo, gone, lost = row.prompt.slo, row.standing.lost, set[str]()
        first = row.first_token_at is None
        if slo.deadline is not None and "deadline" not in gone:
            over = now + prefill_s + seconds(more - first) > slo.deadline
            lost |= {"deadline"} if over else set()
        if slo.ttft_ms is not None and first and "ttft_ms" not in gone:
            over = now + prefill_s > row.prompt.arrival + 1e-3 * slo.ttft_ms
            lost |= {"ttft_ms"} if over else set()
        if slo.tpot_ms is not None and "tpot_ms" not in gone:
            # Arrears can be made up for until the last token, which may be the last one allowed.
            left = row.prompt.params.max_tokens - max(1, len(row.output))
            elapsed = 0.0 if row.first_token_at is None else now - row.first_token_at
            written = max(0, len(row.output) - 1)
            if elapsed + seconds(left) > 1e-3 * slo.tpot_ms * (written + left):
                lost.add("tpot_ms")
        return frozenset(lost)

    def _usual(self, row: Row) -> int:
        """Tokens that the row will still write if it is like others; 1 as long as nothing is known."""
        if self._ended.get(row.prompt.tier, 0) >= EVIDENCE:
            return self._lengths.remaining(row)
        return self._all_lengths.remaining(row) if sum(self._ended.values()) >= EVIDENCE else 1

    def _drained_s(self, row: Row, tokens: int, others: Sequence[int], prompts: int) -> float:
        """Seconds for some tokens beside rows that write so many more tokens each, ascending."""
        total, done = 0.0, 0
        for ended, left in enumerate(others):
            upto = min(left, tokens)
            total += (upto - done) * self._seconds_of_one(row, 1 + len(others) - ended, prompts)
            done = upto
        return total + (tokens - done) * self._seconds_of_one(row, 1)

    def _seconds_of_one(self, row: Row, rows: int, prompts: int = 0, least_share: float = 0.0) -> float:
        """Seconds per token of each of so many rows, drafting where that is faster."""
        share = math.ceil(_SHARES * max(least_share, self._acceptance.at_best(row))) / _SHARES
        return self._token_at(rows, row.committed, prompts if rows > 1 else 0, share)

    def _token_at(self, rows: int, committed: int, prompts: int, share: float) -> float:
        """The same with so many committed tokens each, if such a share of the drafted tokens is accepted."""
        assert self._costs is not None, "nothing is predicted without costs"
        context = _CONTEXT_STEP * (committed // _CONTEXT_STEP + 1)
        known = self._token_s.get((rows, context, prompts, share))
        if known is None:
            drafting = Drafting(share, self._free) if self._drafts else None
            known = token_s(self._costs, rows, context, prompts, drafting)
            self._token_s[rows, context, prompts, share] = known
        return known

    def _holdup_s(self, row: Row, beside: int) -> float:
        """Seconds for which what is left of its prompt holds up others: more than steps would take anyway."""
        assert self._costs is not None, "nothing is predicted without costs"
        if row.committed - row.cached <= 1:
            return 0.0
        return self._prefill_s(row, beside) - self._costs.step_s(beside, float(row.committed), beside, 0)

    def _prefill_s(self, row: Row, beside: int) -> float:
        """Seconds until the first token, beside rows that write one token a step."""
        assert self._costs is not None, "nothing is predicted without costs"
        pending = row.committed - row.cached
        if row.first_token_at is not None and pending <= 1:
            return 0.0
        steps, rest = divmod(pending, self._chunk)
        context = float(row.committed)
        seconds = steps * self._costs.step_s(beside, context, beside, self._chunk)
        return seconds + (self._costs.step_s(beside, context, beside, rest) if rest else 0.0)


def _over(row: Row, now: float) -> frozenset[str]:
    """Promises whose time has passed."""
    slo, ends = row.prompt.slo, dict[str, float]()
    if slo.deadline is not None:
        ends["deadline"] = slo.deadline
    if slo.ttft_ms is not None and row.first_token_at is None:
        ends["ttft_ms"] = row.prompt.arrival + 1e-3 * slo.ttft_ms
    return frozenset(name for name, end in ends.items() if end < now) - row.standing.lost
