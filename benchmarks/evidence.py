"""What is known of an overloaded run, and what is found in it; see :mod:`benchmarks.rules`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FOR_OWNERS = ("not_allowed", "over_quota")
"""Why rows run under the default tier."""

STEPS = ("step", "change", "fallback")
"""Lines of the decisions that stand for a step of a row."""

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run.

    Attributes:
        asked: Rows of the input: ``id``, ``tier``, ``owner`` and ``deadline_s``.
        results: Lines of ``results.parquet``.
        decisions: Lines of ``decisions.parquet``, every step told.
        summary: ``summary.json``.
        report: The run as ``specbatch report --json`` tells it.
        reference: Id → text of a run without promises.
        quotas: Owner → computed tokens.
        allowed: Owner → tiers that the owner may use.
    """

    asked: Sequence[Line]
    results: Sequence[Line]
    decisions: Sequence[Line] = ()
    summary: Line = field(default_factory=dict)
    report: Line = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    allowed: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def rows(self, tier: str | None = None) -> Iterator[tuple[Line, Line]]:
        """What was asked and what came of it; of a tier, those that its owner may use it for."""
        for asked, row in zip(self.asked, self.results, strict=False):
            if tier is None or (asked["tier"] == tier and row["tier_reason"] not in FOR_OWNERS):
                yield asked, row

    def steps_of(self, rows: Iterable[int]) -> list[Line]:
        """The lines about steps of some rows."""
        wanted = set(rows)
        return [each for each in self.decisions if each["row_index"] in wanted and each["event"] in STEPS]


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one rule.

    Attributes:
        rule: In words.
        numbers: What it was found from.
        broken: Each case in which it does not hold.
    """

    rule: str
    numbers: str
    broken: tuple[str, ...] = ()


def attainment(run: Evidence, ids: Iterable[str]) -> float:
    """Share of some rows that kept all their promises."""
    wanted = set(ids)
    met = [row["slo_met"] is True for row in run.results if row["id"] in wanted]
    return sum(met) / max(1, len(met))
