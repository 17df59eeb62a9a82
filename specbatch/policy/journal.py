"""What a policy decided about each row, and what came of it: entries for ``decisions.parquet``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbatch.policy.base import Decision
from specbatch.rows import Row
from specbatch.table.decisions import Entry
from specbatch.verify import Verdict
from specbatch.work import Work

Detail = Literal["summary", "full", "off"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step in which rows were decoded.

    Attributes:
        number: Of the step, in this attempt.
        time_s: Seconds on the run clock.
        work: What it did, prompts not included.
        verdicts: One for each item.
        decisions: Of the policy; empty for policies that treat all rows alike.
        fallback: Why it decoded plainly although the policy is meant to do more; empty when it did not.
        real_gain: Tokens per second of the step against plain decoding as predicted, less one; ``None``
            without predictions.
    """

    number: int
    time_s: float
    work: Sequence[Work]
    verdicts: Sequence[Verdict | None]
    decisions: Mapping[Row, Decision]
    fallback: str
    real_gain: float | None


@dataclass(slots=True)
class _Sums:
    """Of one row."""

    steps: int = 0
    drafted: int = 0
    slo_nodes: int = 0
    extra_nodes: int = 0
    tokens: int = 0
    changes: int = 0
    fallbacks: int = 0
    decided: int = 0
    needed: float = 0.0
    budget: float = 0.0
    expected: float = 0.0
    gain: float = 0.0
    measured: int = 0
    real_gain: float = 0.0
    last: tuple[str, str] | None = None


class Journal:
    """Writes down each row's changes and fallbacks, and a summary of it at its end.

    Args:
        detail: ``summary``, or ``full`` for every step, or ``off``.
        sink: Receives the entries.
        now: The run clock.
    """

    def __init__(self, detail: Detail, sink: Callable[[Entry], None], now: Callable[[], float]) -> None:
        self._detail, self._sink, self._now = detail, sink, now
        self._rows: dict[Row, _Sums] = {}
        self._step = 0

    def run_event(self, event: str, reason: str) -> None:
        """Something that concerns the whole run."""
        if self._detail != "off":
            self._sink(Entry(None, event, reason, self._now(), self._step))

    def power(self, reason: str, tokens: float, watts: float) -> None:
        """The power cap allows another number of tokens per pass now, after a window of so many watts."""
        if self._detail != "off":
            entry = Entry(None, "power", reason, self._now(), self._step, budget=tokens, watts=watts)
            self._sink(entry)

    def event(self, row: Row, event: str, reason: str) -> None:
        """Something happened to a row."""
        if self._detail != "off":
            key, tier = row.prompt.key, row.tier
            self._sink(Entry(key, event, reason, self._now(), self._step, tier=tier))

    def step(self, record: StepRecord) -> None:
        """See a step; before its rows are told."""
        if self._detail == "off":
            return
        self._step = record.number
        for item, verdict in zip(record.work, record.verdicts, strict=True):
            if verdict is not None:
                self._see(item, verdict, record)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        if self._detail == "off":
            return
        sums = self._rows.pop(row, None) or _Sums()
        key, tier, last = row.prompt.key, row.tier, sums.last or ("off", "")
        decided, measured = sums.decided, sums.measured
        self._sink(
            Entry(
                key,
                "row",
                last[1],
                self._now(),
                self._step,
                tier=tier,
                mode=last[0],
                steps=sums.steps,
                needed=sums.needed / decided if decided else None,
                budget=sums.budget / decided if decided else None,
                drafted=sums.drafted,
                slo_nodes=sums.slo_nodes,
                extra_nodes=sums.extra_nodes,
                expected=sums.expected if decided else None,
                tokens=sums.tokens,
                gain=sums.gain / decided if decided else None,
                real_gain=sums.real_gain / measured if measured else None,
                changes=sums.changes,
                fallbacks=sums.fallbacks,
            )
        )

    def _see(self, item: Work, verdict: Verdict, record: StepRecord) -> None:
        row, decision = item.row, record.decisions.get(item.row)
        tokens = len(verdict.path) + (verdict.bonus is not None)
        sums = self._rows.setdefault(row, _Sums())
        mode, reason = _state(item, decision, record.fallback)
        sums.steps += 1
        sums.tokens += tokens
        sums.fallbacks += bool(record.fallback)
        if decision is None:
            sums.drafted += item.drafted
            sums.extra_nodes += item.drafted
            sums.expected += item.tree is None  # plain decoding brings one token, which needs no prediction
        else:
            sums.decided += 1
            sums.drafted += decision.drafted
            sums.slo_nodes += decision.slo_nodes
            sums.extra_nodes += decision.extra_nodes
            sums.needed += decision.needed
            sums.budget += decision.budget
            sums.expected += decision.expected
            sums.gain += decision.gain
        if record.real_gain is not None:
            sums.measured += 1
            sums.real_gain += record.real_gain
        changed = sums.last != (mode, reason)
        sums.changes += changed and sums.last is not None
        sums.last = (mode, reason)
        if changed or self._detail == "full":
            event = "step" if not changed else "fallback" if record.fallback else "change"
            self._sink(_entry(item, (event, mode, reason), record, decision, tokens))


def _state(item: Work, decision: Decision | None, fallback: str) -> tuple[str, str]:
    """How a row was decoded, and why so."""
    if fallback:
        return "off", fallback
    if decision is not None:
        return decision.mode, decision.reason
    if item.tree is None:
        return "off", "plain"
    return "chain" if item.tree.size == int(item.tree.depths.max()) else "tree", "policy"


def _entry(
    item: Work, words: tuple[str, str, str], record: StepRecord, decision: Decision | None, tokens: int
) -> Entry:
    """A line about one row in one step."""
    (event, mode, reason), row = words, item.row
    return Entry(
        row.prompt.key,
        event,
        reason,
        record.time_s,
        record.number,
        tier=row.tier,
        mode=mode,
        steps=1,
        needed=None if decision is None else decision.needed,
        budget=None if decision is None else float(decision.budget),
        drafted=item.drafted if decision is None else decision.drafted,
        slo_nodes=0 if decision is None else decision.slo_nodes,
        extra_nodes=item.drafted if decision is None else decision.extra_nodes,
        expected=None if decision is None else decision.expected,
        tokens=tokens,
        gain=None if decision is None else decision.gain,
        real_gain=record.real_gain,
    )
