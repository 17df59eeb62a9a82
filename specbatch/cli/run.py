"""``specbatch run``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.config import JobConfig
from specbatch.errors import UsageError
from specbatch.settings import PROJECT_FILE, load_config

if TYPE_CHECKING:
    from specbatch.job.outcome import RunOutcome

PANELS = {
    "Job": ("out", "limit", "model", "engine", "policy"),
    "Generation": (
        *("seed", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop"),
        "system",
    ),
    "Input and output": ("tz", "default_tier", "late", "flush_every_s", "flush_rows"),
    "Machine": (
        *(
            "device",
            "dtype",
            "quantize",
            "kernels",
            "threads",
            "max_rows_in_flight",
            "kv_memory",
            "page_size",
            "prefill_chunk",
        ),
    ),
    "Switches": ("token_ids", "raw_prompts", "prefix_sharing"),
    "Exit code": ("max_failures", "fail_on", "min_attainment"),
}


_Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Parquet files, globs or directories; a job file (.toml)."),
]
_Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the summary as one JSON object.")]
_Fresh = Annotated[bool, typer.Option("--fresh", metavar="", help="Discard earlier results, start over.")]

_Retry = Annotated[bool, typer.Option("--retry-failed", metavar="", help="Run rows that failed once more.")]
_Reuse = Annotated[
    Path | None,
    typer.Option(
        "--reuse", metavar="DIR", help="Take over answers of unchanged rows from an earlier run directory."
    ),
]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(JobConfig, PANELS)
def run(
    inputs: _Inputs,
    as_json: _Json = False,
    fresh: _Fresh = False,
    retry_failed: _Retry = False,
    reuse: _Reuse = None,
    **flags: object,
) -> None:
    """Answer every row of a table; started again, go on where it stopped.

    Settings come from flags, SPECBATCH_* variables, the job file and ./specbatch.toml, in this order.

    Example: specbatch run jobs.parquet --max-tokens 64 --out answers
    """
    config = _configure(inputs, flags)
    # What the job needs takes most of a second to import, and --help must not wait for it.
    from specbatch.job.run import Start, run_job  # noqa: PLC0415

    outcome = run_job(config, start=Start(fresh, retry_failed, reuse))
    _show(outcome, as_json)
    raise typer.Exit(int(outcome.exit_code))


def _configure(inputs: list[str], flags: dict[str, object]) -> JobConfig:
    job_files = [name for name in inputs if name.endswith(".toml")]
    tables = tuple(name for name in inputs if not name.endswith(".toml"))
    if len(job_files) > 1:
        raise UsageError(f"several job files: {', '.join(job_files)}", "run them one after another")
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    if tables:
        given["input"] = tables
    return load_config(
        given,
        job_file=Path(job_files[0]) if job_files else None,
        environ=os.environ,
        project_file=Path(PROJECT_FILE),
    )


def _show(outcome: RunOutcome, as_json: bool) -> None:
    """The summary to stdout, remarks to stderr."""
    from specbatch.report.terminal import print_summary  # noqa: PLC0415

    if not outcome.ran:
        typer.echo(f"{outcome.directory} is complete; nothing to do (--fresh runs it again)", err=True)
    if outcome.verdict:
        typer.echo(f"failed: {outcome.verdict}", err=True)
    if as_json:
        extra = {"run_directory": str(outcome.directory), "exit_code": int(outcome.exit_code)}
        typer.echo(json.dumps({**outcome.summary, **extra}))
    else:
        print_summary(outcome.summary, outcome.directory)
