"""The Typer application: every command, each imported only when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from specbatch import __version__
from specbatch.cli.lazy import LazyCommand, lazy_group

_COMMANDS = {
    "run": LazyCommand("specbatch.cli.run", "Answer every row of a table; go on where it was stopped."),
    "validate": LazyCommand("specbatch.cli.validate", "Check a job before it runs; no weights are loaded."),
    "merge": LazyCommand("specbatch.cli.merge", "Put results of shards or runs together."),
    "clean": LazyCommand("specbatch.cli.clean", "Remove the oldest finished runs of a folder."),
    "status": LazyCommand("specbatch.cli.status", "Show how far a run has come, running or not."),
    "report": LazyCommand("specbatch.cli.report", "Show what runs came to: tables, a page, or JSON."),
    "schema": LazyCommand("specbatch.cli.schema", "List the columns of input and output."),
    "convert": LazyCommand("specbatch.cli.convert", "Translate OpenAI batch files to tables, and back."),
    "model": LazyCommand("specbatch.cli.model", "List, fetch, describe and export models."),
    "train-draft": LazyCommand("specbatch.cli.train_draft", "Train a draft head for a model."),
    "profile": LazyCommand("specbatch.cli.profile", "Measure what steps cost on this machine."),
    "bench": LazyCommand("specbatch.cli.bench", "Compare policies on one workload."),
    "doctor": LazyCommand("specbatch.cli.doctor", "Describe this machine, and what is missing on it."),
}

app = typer.Typer(
    cls=lazy_group(_COMMANDS),
    help="Offline batch inference from Parquet, with a deadline on every row.",
    epilog="Example: specbatch run jobs.parquet --limit 10",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specbatch {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option(
        "--version", metavar="", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
]


@app.callback()
def common(_version: _Version = False) -> None:
    """Options of the program itself."""
