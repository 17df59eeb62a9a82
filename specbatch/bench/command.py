"""A comparison from settings to results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbatch.bench.cases import Case, make_cases
from specbatch.bench.results import CaseResult, judge
from specbatch.bench.rig import Rig, open_rig
from specbatch.bench.rounds import Report, run_rounds
from specbatch.bench.source import encode_rows, read_rows
from specbatch.bench.workload import Workload
from specbatch.config import JobConfig
from specbatch.hardware.processor import processor_name
from specbatch.hardware.threads import usable_cores
from specbatch.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared on what.

    Attributes:
        workload: Rows, cases and promises.
        job: Settings that all policies share.
        policies: Each once.
        repeats: Runs of each.
    """

    workload: Workload
    job: JobConfig
    policies: tuple[str, ...]
    repeats: int


def compare(comparison: Comparison, report: Report) -> tuple[Rig, Iterator[CaseResult]]:
    """Load the model; the cases are run as their results are asked for.

    Args:
        comparison: What to do.
        report: Told what is going on.

    Raises:
        SpecbatchError: The model, the workload or its input cannot be used.
    """
    job = comparison.job
    files = resolve_model(job.model, report=report)
    if job.draft_model is not None:
        resolve_model(job.draft_model, report=report)
    rows = read_rows(comparison.workload, job)
    report("loading model")
    most = max(spec.rows_in_flight for spec in comparison.workload.specs(job.max_rows_in_flight))
    rig = open_rig(job.model_copy(update={"max_rows_in_flight": most}), comparison.policies, files)
    if rig.notice:
        report(rig.notice)
    prompts, faults = encode_rows(rows, rig.encoder)
    if faults:
        report(f"left out: {len(faults)} of {len(rows)} rows cannot be answered; {faults[0]}")
    cases = make_cases(comparison.workload, job, prompts)
    return rig, _results(rig, cases, comparison, report)


def machine(rig: Rig, job: JobConfig) -> dict[str, object]:
    """Where this was measured, and with what, for ``--json``."""
    profile = rig.target.profile
    return {
        "model": job.model,
        **rig.computes,
        "processor": processor_name(),
        "threads": job.threads or usable_cores(),
        "drafter": "" if (drafter := rig.new_drafter()) is None else drafter.name,
        "profile": None
        if profile is None
        else {"effort": profile.effort, "measured_at": profile.measured_at},
        "no_profile": rig.target.no_profile,
    }


def _results(rig: Rig, cases: Sequence[Case], comparison: Comparison, report: Report) -> Iterator[CaseResult]:
    for case in cases:
        yield judge(run_rounds(rig, case, comparison.policies, comparison.repeats, report))
