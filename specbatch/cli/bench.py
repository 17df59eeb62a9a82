"""``specbatch bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.cli.job import configure
from specbatch.cli.output import print_json, stdout_may_close
from specbatch.config import JobConfig
from specbatch.config.values import check_policy
from specbatch.errors import UsageError

if TYPE_CHECKING:  # the engine's room imports torch
    from specbatch.bench.results import CaseResult
    from specbatch.bench.workload import Workload

PANELS = {
    "Job": ("model", "limit", "seed", "max_tokens", "temperature"),
    "Speculation": (
        *("gamma", "tree_levels", "tree_width", "tree_nodes", "draft_budget"),
        *("drafter", "draft_model", "draft_head"),
    ),
    "Machine": (
        *("device", "dtype", "quantize", "kernels", "activations", "threads"),
        *("max_rows_in_flight", "kv_memory", "page_size", "prefill_chunk"),
    ),
}
DEFAULT_POLICIES = "off,off+deferral,fixed:4,eagle,dspark,priority,adaserve,auto"
SHOWN = DEFAULT_POLICIES.replace(",", ", ")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(JobConfig, PANELS)
def bench(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A workload or job file (.toml), or a Parquet file.")
    ],
    policies: Annotated[
        str,
        typer.Option(
            "--policies", metavar="LIST", help=f"What to compare (default: {SHOWN}).", show_default=False
        ),
    ] = DEFAULT_POLICIES,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=1000, help="Runs of each policy.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    **flags: object,
) -> None:
    """Compare policies on one workload: the same rows, one loaded model, in turns.

    A workload is a job file with a table "workload": how many rows of each tier
    come when, and what they are promised, also as a factor of what plain
    decoding takes on this machine (tpot = "0.7x"). Any other job file, or a
    Parquet file, is a workload of its rows. Numbers are medians over repeats,
    ratios are taken within a repeat. Let nothing else work on the machine.

    Example: specbatch bench jobs.parquet --policies off,fixed:4,auto
    """
    chosen = parse_policies(policies)
    # Brings in torch, which --help does without.
    from specbatch.bench.command import Comparison, compare, machine  # noqa: PLC0415
    from specbatch.progress import open_reporter  # noqa: PLC0415

    spec, job = _read(workload, flags)
    reporter = open_reporter()
    results = []
    try:
        rig, found = compare(Comparison(spec, job, chosen, repeats), reporter.message)
        for result in found:
            results.append(result)
            if not as_json:
                _show(result)
    finally:
        reporter.close()
    if as_json:
        _print_object(results, machine(rig, job), chosen)
    elif len(results) > 1:
        _show_overview(results)


def _read(workload: str, flags: dict[str, object]) -> tuple[Workload, JobConfig]:
    """A workload and the settings of its job."""
    from specbatch.bench.workload import Workload, read_workload  # noqa: PLC0415

    path = Path(workload)
    spec = read_workload(path) if path.suffix == ".toml" else Workload()
    if spec.prompts:
        flags = {**flags, "input": (workload,)}  # the settings ask for one
    return spec, configure([workload], flags)


def _show(result: CaseResult) -> None:
    from specbatch.bench.show import print_case  # noqa: PLC0415

    with stdout_may_close():
        print_case(result)


def _show_overview(results: Sequence[CaseResult]) -> None:
    from specbatch.bench.show import print_overview  # noqa: PLC0415

    with stdout_may_close():
        print_overview(results)


def _print_object(results: Sequence[CaseResult], machine: dict[str, object], chosen: Sequence[str]) -> None:
    from specbatch.bench.facts import SLO_DEFINITION  # noqa: PLC0415
    from specbatch.bench.results import as_dict  # noqa: PLC0415

    head = {"machine": machine, "policies": chosen, "slo": SLO_DEFINITION}
    print_json({**head, "cases": [as_dict(result) for result in results]})


def parse_policies(text: str) -> tuple[str, ...]:
    """``off,auto`` → both names.

    Raises:
        UsageError: One is no policy, or stands there twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        try:
            check_policy(name)
        except ValueError as error:
            raise UsageError(f"--policies: '{name}' is no policy", str(error)) from None
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"--policies: '{twice[0]}' is there twice", "name each policy once")
    return names
