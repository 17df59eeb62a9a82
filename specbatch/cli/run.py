"""``specbatch run``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.cli.job import Inputs, configure
from specbatch.cli.log import RunLog
from specbatch.cli.output import print_json, stdout_may_close
from specbatch.config import JobConfig

if TYPE_CHECKING:
    from specbatch.job.outcome import RunOutcome

PANELS = {
    "Job": ("out", "limit", "shard", "deadline", "model", "engine"),
    "Generation": (
        *("seed", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop"),
        "system",
    ),
    "Input and output": (
        "where",
        "template",
        "prompt_column",
        "tz",
        "default_tier",
        "late",
        "decisions",
        "flush_every_s",
        "flush_rows",
        *("log_format", "log_file"),
    ),
    "Speculation": (
        *("policy", "gamma", "tree_levels", "tree_width", "tree_nodes", "draft_budget"),
        *("drafter", "draft_model", "draft_head"),
    ),
    "Machine": (
        *(
            "device",
            "dtype",
            "quantize",
            "kernels",
            "activations",
            "threads",
            "max_rows_in_flight",
            "kv_memory",
            "page_size",
            "prefill_chunk",
        ),
    ),
    "Energy": ("objective", "power_cap", "assume_watts", "measure_idle"),
    "Switches": ("token_ids", "raw_prompts", "prefix_sharing"),
    "Exit code": ("max_failures", "fail_on", "min_attainment"),
}


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
    inputs: Inputs,
    as_json: _Json = False,
    fresh: _Fresh = False,
    retry_failed: _Retry = False,
    reuse: _Reuse = None,
    **flags: object,
) -> None:
    """Answer every row of a table; started again, go on where it stopped.

    Settings come from flags, SPECBATCH_* variables, the job file and
    ./specbatch.toml, in this order.

    Exit codes: 0 all rows succeeded, 1 some failed, 2 nothing was run,
    3 too few promises kept, 4 the engine or the disk failed, 75 the run
    directory is in use, 130 and 143 stopped by a signal.

    Example: specbatch run jobs.parquet --max-tokens 64 --out answers
    """
    with errors_as_events(flags):
        config = configure(inputs, flags)
        log = RunLog.of(config)
    with log.errors():
        # What the job needs takes most of a second to import, and --help must not wait for it.
        from specbatch.job.run import Start, run_job  # noqa: PLC0415
        from specbatch.job.surroundings import Surroundings  # noqa: PLC0415

        start, around = Start(fresh, retry_failed, reuse), Surroundings(open_reporter=log.open_reporter)
        outcome = run_job(config, start=start, surroundings=around)
        log.end(outcome)
        _show(outcome, as_json)
    raise typer.Exit(int(outcome.exit_code))


@contextmanager
def errors_as_events(flags: Mapping[str, object]) -> Iterator[None]:
    """With ``--log-format json``, settings that make no job are told of in that form as well.

    Args:
        flags: As given.
    """
    wanted = flags.get("log_format") or os.environ.get("SPECBATCH_LOG_FORMAT")
    with RunLog("json").errors() if wanted == "json" else nullcontext():
        yield


def _show(outcome: RunOutcome, as_json: bool) -> None:
    """The summary to stdout."""
    from specbatch.report.terminal import Ending, print_summary  # noqa: PLC0415

    code = int(outcome.exit_code)
    if as_json:
        print_json({**outcome.summary, "run_directory": str(outcome.directory), "exit_code": code})
        return
    with stdout_may_close():
        print_summary(outcome.summary, Ending(outcome.directory, code, outcome.verdict))
