"""Where the log of a run goes, with what its reporter cannot know: errors, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from specbatch.config import JobConfig
from specbatch.errors import SpecbatchError

if TYPE_CHECKING:
    from specbatch.job.outcome import RunOutcome
    from specbatch.progress import LogFile, Reporter


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one run.

    Attributes:
        form: Of its lines.
        file: Where they go; ``None`` is stderr.
    """

    form: Literal["text", "json"]
    file: LogFile | None = None

    @classmethod
    def of(cls, config: JobConfig) -> RunLog:
        """Open the log of a job.

        Raises:
            UsageError: Its file cannot be opened.
        """
        from specbatch.progress import LogFile  # noqa: PLC0415 - rich

        return cls(config.log_format, None if config.log_file is None else LogFile(config.log_file))

    def open_reporter(self) -> Reporter:
        """What writes it; with a file, warnings go to stderr as well."""
        from specbatch.progress import DatedReporter, JsonReporter, open_reporter  # noqa: PLC0415

        if self.file is None:
            return open_reporter(log_format=self.form)
        kind = JsonReporter if self.form == "json" else DatedReporter
        return kind(self.file, alarms=sys.stderr)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """An error is a line of the log, too; and where that is stderr and JSON, no other line."""
        from specbatch.progress import write_dated, write_event  # noqa: PLC0415

        try:
            yield
        except SpecbatchError as error:
            code = int(error.exit_code)
            if self.form == "json":
                fields = {"message": error.what, "hint": error.hint, "exit_code": code}
                write_event(self.file or sys.stderr, "error", fields, "error")
                if self.file is None:
                    raise typer.Exit(code) from None
            elif self.file is not None:
                write_dated(self.file, f"error: {error.what} (exit code {code})")
            raise

    def end(self, outcome: RunOutcome) -> None:
        """How the run ended, for the log and for those who read stderr."""
        from specbatch.progress import write_dated, write_event  # noqa: PLC0415

        code, verdict = int(outcome.exit_code), outcome.verdict
        if self.form == "json":
            level: Literal["info", "error"] = "error" if verdict else "info"
            fields = {"exit_code": code, "verdict": verdict, "ran": outcome.ran}
            where = {"run_directory": str(outcome.directory), **_numbers(outcome)}
            write_event(self.file or sys.stderr, "end", {**fields, **where}, level)
            if self.file is None:
                return
        elif self.file is not None:
            why = f": {verdict}" if verdict else ""
            write_dated(self.file, f"end: {outcome.directory}, exit code {code}{why}")
        if not outcome.ran:
            typer.echo(f"{outcome.directory} is complete; nothing to do (--fresh runs it again)", err=True)
        if verdict:
            typer.echo(f"failed: {verdict}", err=True)


def _numbers(outcome: RunOutcome) -> Mapping[str, object]:
    """What one wants to plot over nights."""
    summary = outcome.summary
    return {
        "rows": {"total": summary["rows"]["total"], **summary["rows"]["by_status"]},
        "output_tokens": summary["tokens"]["output"],
        "attainment": summary["slo"]["attainment"],
        "device_seconds": summary["time"]["device_seconds"],
    }
