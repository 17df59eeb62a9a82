"""``specbatch report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close
from specbatch.errors import UsageError

PAIR = 2

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, e.g. jobs.out.")
    ],
    compare: Annotated[
        bool,
        typer.Option("--compare", metavar="", help="Show what differs between two runs, and its spread."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots as well; one file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Show what a run came to: promises, goodput, drafts, energy, decisions.

    Several directories make a trend, a line per night. Everything is computed
    from the tables and compared with summary.json. Runs that are unfinished or
    damaged are reported as far as they go. Nothing is changed.

    Example: specbatch report jobs.out --html report.html
    """
    if compare and len(directories) != PAIR:
        raise UsageError(
            f"--compare takes two run directories, not {len(directories)}",
            "specbatch report --compare BASELINE.out OTHER.out",
        )
    # pyarrow takes a moment to import, and --help must not wait for it.
    from specbatch.report.runs.record import read_record  # noqa: PLC0415
    from specbatch.report.runs.views import view_of  # noqa: PLC0415

    view = view_of([read_record(directory) for directory in directories], side_by_side=compare)
    if html is not None:
        _write(html, view.page())
    if as_json:
        print_json(view.content)
        return
    with stdout_may_close():
        view.show()


def _write(path: Path, content: str) -> None:
    """The whole page or none, whatever was there before.

    Raises:
        UsageError: There is no place for it.
        StorageError: The disk refused.
    """
    from specbatch.table.atomic import write_text  # noqa: PLC0415

    # Where a link points, as other programs do: a page that took its place would leave the old one there.
    target = path.resolve()
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else f"cannot be written: there is no folder {path.parent}"
        raise UsageError(f"--html {path} {what}", "name a file, e.g. --html report.html")
    # A name of the user's may hold half a character, which no file takes.
    write_text(target, content.encode(errors="replace").decode())
    sys.stderr.write(f"page written to {path}\n")
