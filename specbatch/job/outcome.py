"""How a finished job is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbatch.config import JobConfig
from specbatch.errors import ExitCode
from specbatch.report.summary import Summary
from specbatch.rows import Status

_FAILURES = (Status.REJECTED, Status.ERROR, Status.EXPIRED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a job came to.

    Attributes:
        directory: The run directory.
        exit_code: For the process.
        summary: Content of ``summary.json``.
        verdict: Why the exit code is not 0, one line; empty when it is.
        ran: False when everything was there already.
    """

    directory: Path
    exit_code: ExitCode
    summary: Summary
    verdict: str
    ran: bool


def judge(summary: Summary, config: JobConfig) -> tuple[ExitCode, str]:
    """Exit code and reason under the job's tolerances."""
    counts: Mapping[str, int] = summary["rows"]["by_status"]
    counted = [*_FAILURES, *(Status(name) for name in config.fail_on)]
    failed = sum(counts.get(status.value, 0) for status in counted)
    total = summary["rows"]["total"]
    allowed = config.allowed_failures(total)
    if failed > allowed:
        return (
            ExitCode.ROW_FAILURES,
            f"{failed} of {total} rows failed (max_failures = {config.max_failures})",
        )
    attainment = summary["slo"]["attainment"]
    if config.min_attainment is not None and attainment is not None and attainment < config.min_attainment:
        reason = f"{attainment:.1%} of the SLOs were attained (min_attainment = {config.min_attainment:.1%})"
        return ExitCode.ATTAINMENT, reason
    return ExitCode.OK, ""
