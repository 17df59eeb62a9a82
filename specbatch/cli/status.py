"""``specbatch status``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close

if TYPE_CHECKING:
    from specbatch.report.status import RunStatus

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory, e.g. jobs.out.")],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Show how far a run has come, whether it is alive, stopped or killed.

    Reads the run directory only; a run that is going on is not disturbed.

    Example: specbatch status jobs.out
    """
    # pyarrow takes a moment to import, and --help must not wait for it.
    from specbatch.report.status import read_status  # noqa: PLC0415

    found = read_status(directory)
    if as_json:
        print_json(asdict(found))
        return
    with stdout_may_close():
        for name, text in _facts(found):
            sys.stdout.write(f"{name:<12}{text}\n")


def _facts(found: RunStatus) -> list[tuple[str, str]]:
    from specbatch.progress import duration  # noqa: PLC0415 - rich
    from specbatch.report.status import age  # noqa: PLC0415
    from specbatch.report.words import count  # noqa: PLC0415

    facts = [("run", found.directory), ("state", _state(found))]
    if found.rows_total is None:
        facts.append(("rows", f"{count(found.rows_done)} done"))
    else:
        share = found.rows_done / max(1, found.rows_total)
        facts.append(("rows", f"{count(found.rows_done)} of {count(found.rows_total)} done ({share:.0%})"))
    if found.rows_per_s is not None:
        left = "" if found.eta_s is None else f", about {duration(found.eta_s)} to go"
        facts.append(("rate", f"{found.rows_per_s:.3g} rows answered per second in the latest attempt{left}"))
    if found.started is not None:
        facts.append(("started", f"{_moment(found.started)}, {_attempts(found.attempts)}"))
    if found.last_commit is not None:
        ago = duration(age(found.last_commit))
        facts.append(("last commit", f"{_moment(found.last_commit)}, {ago} ago"))
    facts += [("note", problem) for problem in found.problems]
    return facts


def _state(found: RunStatus) -> str:
    if found.state == "running":
        return f"running, process {found.process or 'unknown'}"
    if found.state == "finished":
        return f"finished, exit code {found.exit_code}"
    if found.state == "stopped":
        return f"stopped, exit code {found.exit_code}; the same command continues"
    if found.state == "killed":
        return "dead: killed, the machine went down, or its disk had no room left; the same command continues"
    return "unknown"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def _attempts(number: int) -> str:
    return f"{number} attempt{'' if number == 1 else 's'}"
