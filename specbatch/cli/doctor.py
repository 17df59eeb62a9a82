"""``specbatch doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close

if TYPE_CHECKING:
    from specbatch.report.doctor import Checkup

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """Describe this machine as a run would find it, and what is missing on it.

    Ends with exit code 0 whatever it finds: what is missing may not be needed.

    Example: specbatch doctor
    """
    from specbatch.report.doctor import examine  # noqa: PLC0415 - not needed for --help

    found = examine(lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(found.as_dict())
        return
    with stdout_may_close():
        _print(found)


def _print(found: Checkup) -> None:
    from specbatch.report.page import Page  # noqa: PLC0415 - rich

    page = Page()
    for name, text in _facts(found):
        page.fact(name, text)
    for finding in found.missing:
        page.fact("missing", finding.what)
        page.fact("", f"to get it: {finding.fix}")
    if not found.missing:
        page.fact("missing", "nothing")


def _facts(found: Checkup) -> list[tuple[str, str]]:
    from specbatch.report.words import size  # noqa: PLC0415

    packages = [f"{name} {number}" for name, number in found.packages.items() if number is not None]
    available = "unknown" if found.memory_available is None else size(found.memory_available)
    limit = "" if found.memory_limit is None else f", container limit {size(found.memory_limit)}"
    kernels = f"compiled, {found.kernels.isa}" if found.kernels.isa else f"none: {found.kernels.reason}"
    facts = [
        ("specbatch", found.specbatch),
        ("python", f"{found.python} at {found.executable}"),
        ("system", found.system),
        ("packages", ", ".join(packages)),
        ("cpu", f"{found.cpu}, {found.usable_cores} of {found.cores} cores usable"),
        ("memory", f"{available} available of {size(found.memory_total)}{limit}"),
        ("gpu", ", ".join(found.gpus.names) or f"none: {found.gpus.reason}"),
        ("kernels", kernels),
    ]
    for disk in found.disks:
        free = "unknown" if disk.free_bytes is None else size(disk.free_bytes)
        facts.append(("disk", f"{free} free for the {disk.purpose}, {disk.path}"))
    for meter in found.meters:
        facts.append(("energy", f"{meter.name}: {'' if meter.readable else 'not readable, '}{meter.reason}"))
    facts.append(("models", ", ".join(found.models) or "none on this machine"))
    return facts
