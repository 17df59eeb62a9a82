"""``specbatch clean``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close

if TYPE_CHECKING:
    from specbatch.job.clean import OldRun

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def clean(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders that hold run directories, each for itself.")
    ],
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=0, help="Finished runs that stay.")],
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Remove; else only say what.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", metavar="", help="Also older runs that never finished.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Remove the oldest finished runs of a folder.

    Without --yes nothing is removed, only told. Runs that are going on or not
    finished stay, and so does whatever is not a run directory, or holds files
    that no run wrote.

    Example: specbatch clean --keep 14 results --yes
    """
    # pydantic takes a moment to import, and --help must not wait for it.
    from specbatch.job.clean import leftovers, old_runs, remove  # noqa: PLC0415

    seen: list[OldRun] = []
    # A folder named twice would have its runs removed twice.
    for folder in {path.resolve(): path for path in directories}.values():
        runs = old_runs(folder, keep, unfinished=unfinished)
        seen += [*leftovers(folder), *runs]
    kept = [run for run in seen if run.kept]
    going = [run for run in seen if not run.kept]
    if yes:
        ended = list(remove(going))
        kept, going = [*kept, *(run for run in ended if run.kept)], [run for run in ended if not run.kept]
    if as_json:
        listed = {"removed" if yes else "would_remove": going, "kept": kept}
        shown = {
            name: [{**asdict(run), "path": str(run.path)} for run in runs] for name, runs in listed.items()
        }
        print_json({**shown, "bytes": sum(run.size for run in going)})
        return
    with stdout_may_close():
        _print(going, kept, "removed" if yes else "would remove")


def _print(going: list[OldRun], kept: list[OldRun], verb: str) -> None:
    from specbatch.table.lock import local_time  # noqa: PLC0415

    for run in going:
        when = "" if run.started is None else f", started {local_time(run.started)}"
        sys.stdout.write(f"{verb} {run.path} ({_size(run.size)}{when})\n")
    for run in kept:
        sys.stdout.write(f"kept {run.path}: {run.kept}\n")
    total = _size(sum(run.size for run in going))
    runs = f"{len(going)} run{'' if len(going) == 1 else 's'}"
    done = "freed" if verb == "removed" else "--yes frees"
    sys.stdout.write(
        f"{runs} {verb if verb == 'removed' else 'to remove'}, {len(kept)} kept; {done} {total}\n"
    )


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
