"""Every number of one run's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specbatch.report.failures import COLUMNS as FAILURE_COLUMNS
from specbatch.report.failures import failures_among
from specbatch.report.runs.check import Check, check_summary
from specbatch.report.runs.choices import Choices, choices_of
from specbatch.report.runs.columns import amounts, moments, of_tier, share, tiers_of
from specbatch.report.runs.course import Course, course_of
from specbatch.report.runs.fates import Drafts, drafts_of
from specbatch.report.runs.owners import Account, accounts_of
from specbatch.report.runs.promises import ALL, Kept, kept_by_tier
from specbatch.report.runs.record import RunRecord
from specbatch.report.summary import Summary, summarise_rows


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; ``None`` where the engine did not say.

    Attributes:
        peak_resident: Of the process.
        kv_peak: Pages of keys and values that rows held at once, at most.
        kv_total: All pages.
        tree_peak: Pages that held drafted tokens only, at most.
        fragmentation: Share of the slots in rows' pages that stay empty: each row's last page at its end.
    """

    peak_resident: float | None
    kv_peak: float | None
    kv_total: float | None
    tree_peak: float | None
    fragmentation: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far predicted acceptance was from what happened, over all candidates that the target reached.

    Attributes:
        candidates: How many.
        accepted: Share of them that was.
        predicted: Mean calibrated probability.
        error: Expected calibration error, ten bins (Naeini, Cooper & Hauskrecht 2015); of several attempts
            the mean.
        error_reported: The same of the drafter's own probabilities.
    """

    candidates: int
    accepted: float
    predicted: float
    error: float
    error_reported: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run.

    Attributes:
        directory: As it was given.
        state: ``running``, ``finished``, ``stopped``, ``killed`` or ``unknown``.
        exit_code: Of the last attempt.
        started: Unix seconds.
        policy: Of the job.
        source: Where rows were read.
        problems: What is missing or damaged.
        baseline: What goodput and gains are compared with, in words.
        lost_tokens: Computed by attempts that ended early, and never committed.
        preemptions: By tier.
        summary: As in ``summary.json``, computed again.
        check: Against the recorded one.
        promises: By tier, and ``all``.
        drafts: By tier, and ``all``.
        course: Over time; ``None`` when no row has run.
        choices: ``None`` without decisions.
        calibration: ``None`` where the engine recorded none.
        owners: Empty where rows have none.
        memory: Peaks.
    """

    directory: str
    state: str
    exit_code: int | None
    run_id: str
    started: float | None
    attempts: int
    policy: str | None
    source: str
    rows_total: int | None
    problems: list[str]
    baseline: str
    lost_tokens: int
    preemptions: dict[str, int]
    summary: Summary
    check: Check
    promises: dict[str, Kept]
    drafts: dict[str, Drafts]
    course: Course | None
    choices: Choices | None
    calibration: Calibration | None
    owners: list[Account]
    memory: Memory

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def report_of(record: RunRecord) -> RunReport:
    """Compute everything from the rows, the attempts and the decisions."""
    manifest, rows, status = record.manifest, record.rows, record.status
    failed = failures_among(rows.select(list(FAILURE_COLUMNS)).to_batches(), manifest.fail_on)
    summary = summarise_rows(rows, failed, manifest)
    course = course_of(rows, _epoch(record), [attempt.began for attempt in manifest.attempts])
    choices = None
    if record.decisions is not None:
        choices = choices_of(record.decisions, [] if course is None else course.edges)
    seconds = float(summary["time"]["engine_seconds"])
    policy = manifest.config.get("policy")
    return RunReport(
        directory=status.directory,
        state=status.state.value,
        exit_code=status.exit_code,
        run_id=manifest.run_id,
        started=record.started,
        attempts=len(manifest.attempts),
        policy=None if policy is None else str(policy),
        source=record.source,
        rows_total=status.rows_total,
        problems=list(record.problems),
        baseline=_baseline(choices, manifest.config.get("policy")),
        lost_tokens=sum(attempt.lost_tokens for attempt in manifest.attempts if attempt.exit_code is None),
        preemptions={
            tier: int(amounts(of_tier(rows, tier), "num_preemptions").sum()) for tier in tiers_of(rows)
        },
        summary=summary,
        check=check_summary(record, summary),
        promises=kept_by_tier(rows, manifest.config, seconds),
        drafts={**{tier: drafts_of(of_tier(rows, tier)) for tier in tiers_of(rows)}, ALL: drafts_of(rows)},
        course=course,
        choices=choices,
        calibration=_calibration(summary["engine"]),
        owners=accounts_of(rows, manifest.config, manifest.owner_tokens),
        memory=_memory(record, summary["memory"]),
    )


def _epoch(record: RunRecord) -> float:
    """Unix time of the run clock's zero; without ``run.json``, the first arrival."""
    if record.has_manifest:
        return record.manifest.epoch
    arrivals = moments(record.rows, "arrival")
    return float(np.nanmin(arrivals)) if len(arrivals) and not np.isnan(arrivals).all() else 0.0


def _baseline(choices: Choices | None, policy: object) -> str:
    if policy == "off":
        return "this run decodes plainly: it is what others are compared with"
    if choices is not None and choices.real_gain is not None:
        return (
            f"plain decoding as predicted from measured costs: {choices.real_gain:+.1%} tokens/s in the same "
            "steps; none was measured in this run"
        )
    return "none in this run: compare with a run of --policy off, or see specbatch bench"


def _calibration(engine: Mapping[str, object]) -> Calibration | None:
    candidates = _number(engine, "calibration.candidates")
    names = ("accepted", "calibrated", "ece", "ece_reported")
    sums = [_number(engine, f"calibration.{name}_sum") for name in names]
    if not candidates:
        return None
    return Calibration(int(candidates), *((value or 0.0) / candidates for value in sums))


def _memory(record: RunRecord, stats: Mapping[str, object]) -> Memory:
    page, per_token = _number(stats, "kv_page_size"), _number(stats, "kv_bytes_per_token")
    per_page = page * per_token if page and per_token else None

    def pages(name: str) -> float | None:
        number = _number(stats, name)
        return None if number is None or per_page is None else number * per_page

    return Memory(
        peak_resident=_number(stats, "peak_resident_bytes") or None,
        kv_peak=pages("kv_pages_peak"),
        kv_total=pages("kv_pages_total"),
        tree_peak=pages("draft_pages_peak"),
        fragmentation=_fragmentation(record, page),
    )


def _fragmentation(record: RunRecord, page: float | None) -> float | None:
    size = page or record.manifest.config.get("page_size")
    if not isinstance(size, int | float) or not size:
        return None
    tokens = amounts(record.rows, "prompt_tokens") + amounts(record.rows, "output_tokens")
    tokens = tokens[amounts(record.rows, "target_passes") > 0]
    slots = float((np.ceil(tokens / size) * size).sum())
    used = share(float(tokens.sum()), slots)
    return None if used is None else 1.0 - used


def _number(stats: Mapping[str, object], name: str) -> float | None:
    value = stats.get(name)
    return float(value) if isinstance(value, int | float) else None
