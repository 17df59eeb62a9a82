"""The ``specbatch`` command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from specbatch import __version__
from specbatch.cli.lazy import LazyCommand, lazy_group
from specbatch.errors import SpecbatchError
from specbatch.hardware.threads import prepare_environment
from specbatch.signals import Interrupts

_COMMANDS = {
    "run": LazyCommand("specbatch.cli.run", "Answer every row of a table; go on where it was stopped."),
    "model": LazyCommand("specbatch.cli.model", "List, fetch, describe and export models."),
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


def main() -> None:
    """Run the command line; errors become one line each and a documented exit code."""
    prepare_environment(os.environ)
    try:
        with Interrupts():
            app()
    except SpecbatchError as error:
        typer.echo(f"error: {' '.join(error.what.split())}", err=True)
        if error.hint:
            typer.echo(f"  hint: {' '.join(error.hint.split())}", err=True)
        sys.exit(int(error.exit_code))
