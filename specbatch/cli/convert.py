"""``specbatch convert``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close
from specbatch.errors import UsageError

if TYPE_CHECKING:
    from specbatch.table.openai_batch import Conversion

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

_LINES = (".jsonl", ".ndjson")


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Batch file (.jsonl), run directory or results.parquet.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File to write: .parquet or .jsonl.")],
    drop_unsupported: Annotated[
        bool,
        typer.Option("--drop-unsupported", metavar="", help="Leave out body fields that cannot be honoured."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Translate OpenAI batch files: requests to an input table, results to responses.

    A body field that would change the text and is not supported is refused
    by name. Which model answers is said by specbatch run --model.

    Example: specbatch convert batch.jsonl jobs.parquet

    And back: specbatch convert jobs.out answers.jsonl
    """
    # pyarrow takes a moment to import, and --help must not wait for it.
    from specbatch.table.openai_batch import requests_to_table, results_to_responses  # noqa: PLC0415

    if source.suffix in _LINES and target.suffix == ".parquet":
        done = requests_to_table(source, target, drop_unsupported)
    elif target.suffix in _LINES and source.suffix not in _LINES:
        done = results_to_responses(source, target)
    else:
        raise UsageError(
            f"cannot convert {source} to {target}",
            "give a .jsonl file and a .parquet file, or a run directory and a .jsonl file",
        )
    _remark(done)
    if as_json:
        print_json({"rows": done.rows, "target": str(target), "left_out": dict(done.left_out)})
        return
    with stdout_may_close():
        sys.stdout.write(f"{done.rows:,} rows written to {target}\n")


def _remark(done: Conversion) -> None:
    for name, lines in done.left_out.items():
        typer.echo(f"warning: {name} left out ({lines:,} line{'s' if lines > 1 else ''})", err=True)
    if len(done.models) > 1:
        typer.echo(
            f"warning: the file names {len(done.models)} models ({', '.join(list(done.models)[:3])});"
            " one run uses one model, the one of --model",
            err=True,
        )
