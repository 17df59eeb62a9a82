"""How a finished job is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, TooManyFailures
from specbatch.report.summary import Summary
from specbatch.rows import Status
from specbatch.signals import Interrupts

WARM_UP_ROWS = 100
"""Rows that must have ended before a rate of failures is taken to mean anything."""

_CONFIDENCE_99 = 2.326
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


def counts_as_failed(config: JobConfig) -> frozenset[Status]:
    """The ends of a row that ``max_failures`` counts."""
    return frozenset([*_FAILURES, *(Status(name) for name in config.fail_on)])


def has_failures(summary: Summary) -> bool:
    """Whether a finished run has rows without text."""
    return any(summary["rows"]["by_status"].get(status.value, 0) for status in _FAILURES)


def judge(summary: Summary, config: JobConfig) -> tuple[ExitCode, str]:
    """Exit code and reason under the job's tolerances."""
    counts: Mapping[str, int] = summary["rows"]["by_status"]
    failed = sum(counts.get(status.value, 0) for status in counts_as_failed(config))
    total = summary["rows"]["total"]
    allowed = config.allowed_failures(total)
    if failed > allowed:
        ends = (
            "failed or were truncated" if counts.get(Status.TRUNCATED.value) and config.fail_on else "failed"
        )
        return (
            ExitCode.ROW_FAILURES,
            f"{failed} of {total} rows {ends} (max_failures = {config.max_failures})",
        )
    attainment = summary["slo"]["attainment"]
    if config.min_attainment is not None and attainment is not None and attainment < config.min_attainment:
        reason = f"{attainment:.1%} of the SLOs were attained (min_attainment = {config.min_attainment:.1%})"
        return ExitCode.ATTAINMENT, reason
    return ExitCode.OK, ""


class StopRule:
    """When to leave before the end: on a signal, or because far too many rows fail.

    A number in ``max_failures`` is judged at the end of the run. A percentage is also watched: from
    ``WARM_UP_ROWS`` rows on, the attempt ends once its share of failures is above the percentage
    beyond chance: the lower end of Wilson's 99 % interval is (E. B. Wilson, 1927, JASA 22:209-212).

    Args:
        interrupts: Of the run.
        config: The job.
    """

    def __init__(self, interrupts: Interrupts, config: JobConfig) -> None:
        self._interrupts, self._rate, self._tolerated = interrupts, config.failure_rate, config.max_failures
        self._counted = counts_as_failed(config)
        self._ended = self._failed = 0
        self._hopeless = False

    def saw(self, status: Status) -> None:
        """A row ended."""
        self._ended += 1
        self._failed += status in self._counted
        if self._rate is not None and self._ended >= WARM_UP_ROWS:
            self._hopeless = lower_bound(self._failed, self._ended) > self._rate

    @property
    def requested(self) -> bool:
        """Whether to leave."""
        return self._interrupts.requested or self._hopeless

    def check(self) -> None:
        """Say why the engine left early, if it did.

        Raises:
            Interrupted: A signal has arrived.
            TooManyFailures: The share of failures is above ``max_failures``.
        """
        self._interrupts.check()
        if self._hopeless:
            raise TooManyFailures(
                f"{self._failed} of the first {self._ended} rows failed (max_failures = {self._tolerated}); "
                "the rest was not run",
                "the parts say why; the same command goes on, --retry-failed runs failed rows again",
            )


def lower_bound(failed: int, ended: int) -> float:
    """Lower end of Wilson's one-sided 99 % confidence interval of a rate."""
    rate, spread = failed / ended, _CONFIDENCE_99**2 / ended
    half = math.sqrt(spread * (rate * (1 - rate) + spread / 4))
    return (rate + spread / 2 - half) / (1 + spread)
