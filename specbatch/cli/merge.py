"""``specbatch merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Run directories: all shards, or whole runs.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the merged results.")],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Put the results of shards or runs together, in input order.

    Shards of one job make the table that the job would have made in one
    piece; whole runs come one after the other. Runs with different settings,
    shards that are missing, and runs that are not finished are refused.

    Exit codes: as specbatch run, judged over all rows.

    Example: specbatch merge out/1-of-2 out/2-of-2 --out out/all
    """
    # pyarrow takes a moment to import, and --help must not wait for it.
    from specbatch.job.merge import merge_runs  # noqa: PLC0415
    from specbatch.report.terminal import Ending, print_summary  # noqa: PLC0415

    outcome = merge_runs(directories, out)
    code = int(outcome.exit_code)
    if as_json:
        print_json({**outcome.summary, "run_directory": str(outcome.directory), "exit_code": code})
    else:
        with stdout_may_close():
            print_summary(outcome.summary, Ending(outcome.directory, code, outcome.verdict))
    raise typer.Exit(code)
