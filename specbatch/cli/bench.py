"""``specbatch bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.cli.job import configure
from specbatch.cli.output import print_json, stdout_may_close
from specbatch.config import JobConfig
from specbatch.config.values import check_policy
from specbatch.errors import UsageError

PANELS = {
    "Job": ("model", "limit", "seed", "max_tokens", "temperature"),
    "Speculation": (
        *("gamma", "tree_levels", "tree_width", "tree_nodes", "draft_budget"),
        *("drafter", "draft_model", "draft_head"),
    ),
    "Machine": (
        *("device", "dtype", "quantize", "kernels", "threads", "max_rows_in_flight"),
        *("kv_memory", "page_size", "prefill_chunk"),
    ),
}
DEFAULT_POLICIES = "off,off+deferral,fixed:4,eagle,dspark,priority,adaserve,auto"

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(JobConfig, PANELS)
def bench(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A workload or job file (.toml), or a Parquet file.")
    ],
    policies: Annotated[
        str, typer.Option("--policies", metavar="LIST", help="Policies to compare, separated by commas.")
    ] = DEFAULT_POLICIES,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=1000, help="Runs of each policy.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    **flags: object,
) -> None:
    """Compare policies on one workload: the same rows, one loaded model, in turns.

    Example: specbatch bench jobs.parquet --policies off,fixed:4,auto
    """
    chosen = parse_policies(policies)
    path = Path(workload)
    # Brings in torch, which --help does without.
    from specbatch.bench.command import Comparison, compare  # noqa: PLC0415
    from specbatch.bench.results import as_dict  # noqa: PLC0415
    from specbatch.bench.show import print_case  # noqa: PLC0415
    from specbatch.bench.workload import Workload, read_workload  # noqa: PLC0415
    from specbatch.progress import open_reporter  # noqa: PLC0415

    spec = read_workload(path) if path.suffix == ".toml" else Workload()
    if spec.prompts:
        flags["input"] = (workload,)  # the settings ask for one
    job = configure([workload], flags)
    reporter = open_reporter()
    try:
        _, results = compare(Comparison(spec, job, chosen, repeats), reporter.message)
        cases = []
        for result in results:
            if as_json:
                cases.append(as_dict(result))
                continue
            with stdout_may_close():
                print_case(result)
    finally:
        reporter.close()
    if as_json:
        print_json({"policies": chosen, "cases": cases})


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
