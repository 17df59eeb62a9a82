"""A comparison from settings to results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbatch.bench.cases import Case, make_cases
from specbatch.bench.results import CaseResult, judge
from specbatch.bench.rig import Rig, open_rig
from specbatch.bench.rounds import Report, run_rounds
from specbatch.bench.source import read_prompts
from specbatch.bench.workload import Workload
from specbatch.config import JobConfig
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
    report("loading model")
    most = max(spec.rows_in_flight for spec in comparison.workload.specs(job.max_rows_in_flight))
    rig = open_rig(job.model_copy(update={"max_rows_in_flight": most}), comparison.policies, files)
    if rig.notice:
        report(rig.notice)
    prompts, faults = read_prompts(comparison.workload, job, rig.encoder)
    if faults:
        report(f"{len(faults)} rows cannot be answered and are left out; {faults[0]}")
    cases = make_cases(comparison.workload, job, prompts)
    return rig, _results(rig, cases, comparison, report)


def _results(rig: Rig, cases: Sequence[Case], comparison: Comparison, report: Report) -> Iterator[CaseResult]:
    for case in cases:
        yield judge(run_rounds(rig, case, comparison.policies, comparison.repeats, report))
