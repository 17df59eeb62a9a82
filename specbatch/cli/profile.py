"""``specbatch profile``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.cli.job import configure
from specbatch.cli.output import print_json, stdout_may_close
from specbatch.config import JobConfig
from specbatch.errors import StorageError, UsageError

if TYPE_CHECKING:
    from specbatch.engine.profile_store import Found
    from specbatch.progress import Reporter

PANELS = {
    "Models": ("model", "drafter", "draft_model", "draft_head"),
    "Machine": (
        "device",
        "dtype",
        "quantize",
        "kernels",
        "activations",
        "threads",
        "kv_memory",
        "page_size",
        "prefill_chunk",
    ),
}
_LARGEST = {"policy": "eagle", "tree_levels": 3, "tree_width": 8, "tree_nodes": 24, "max_rows_in_flight": 64}
"""A drafter built for these takes all that is measured."""

_TENTHS = 10

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(JobConfig, PANELS)
def profile(
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Measure again, even where there is a profile.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=1, max=86400, help="Measure for so long at most.")
    ] = 60.0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the profile into a file as well.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    **flags: object,
) -> None:
    """Measure what steps cost on this machine, for a model and its drafter.

    Policies that weigh speculation against time need such a profile. It is kept
    in the cache (SPECBATCH_CACHE) and used by every run with the same machine,
    threads, kernels and models; without one, a run measures a short one itself.
    Let nothing else work on the machine meanwhile.

    Example: specbatch profile --threads 2 --plot profile.svg
    """
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(
            f"--plot {plot}: profiles are drawn as .svg", f"use --plot {plot.with_suffix('.svg')}"
        )
    if plot is not None:
        _check_plot(plot)
    job = configure(["profile"], {**flags, **_LARGEST})
    found = _profile(job, seconds, force)
    _show(found, plot, as_json)


def _check_plot(plot: Path) -> None:
    """What would keep the picture from being written is told before a minute is spent.

    Raises:
        UsageError: There is no place for it.
        StorageError: The disk refuses.
    """
    try:
        if plot.is_dir() or not plot.parent.is_dir():
            what = "is a folder" if plot.is_dir() else f"cannot be written: there is no folder {plot.parent}"
            raise UsageError(f"--plot {plot} {what}", "name a file, e.g. --plot profile.svg")
        was_there = plot.exists()
        plot.open("a").close()
        if not was_there:
            plot.unlink()
    except OSError as error:
        what = f"{plot} cannot be written: {error.strerror or error}"
        raise StorageError(what, "name a file that can be, nothing was measured") from error


def _check_cache(directory: Path) -> None:
    """The same for the profile itself; no folder is made for one that may never be.

    Raises:
        StorageError: The cache cannot be written.
    """
    try:
        there = next(place for place in (directory, *directory.absolute().parents) if place.exists())
        TemporaryFile(dir=there).close()
    except OSError as error:
        raise StorageError(
            f"the profile cannot be kept in {directory}: {error.strerror or error}",
            "set SPECBATCH_CACHE to a directory that can be written; nothing was measured",
        ) from error


def _profile(job: JobConfig, seconds: float, force: bool) -> Found:
    """The full profile in the cache, or one that is measured now."""
    # Brings in torch, which --help does without.
    from specbatch.engine.profile_grid import FULL  # noqa: PLC0415
    from specbatch.engine.profile_store import Found, find_profile, save_profile  # noqa: PLC0415
    from specbatch.engine.profiles import open_subject  # noqa: PLC0415
    from specbatch.engine.profiling import Watch, measure_costs  # noqa: PLC0415
    from specbatch.models.resolve import resolve_model  # noqa: PLC0415
    from specbatch.progress import open_reporter  # noqa: PLC0415

    reporter = open_reporter()
    try:
        reporter.phase("loading model")
        files = resolve_model(job.model, report=reporter.message)
        if job.draft_model is not None:
            resolve_model(job.draft_model, report=reporter.message)
        subject = open_subject(job, files)
        found = find_profile(subject.fingerprint)
        if found.table is not None and found.table.effort == "full" and not force:
            reporter.message(f"measured at {found.table.measured_at}; --force measures again")
            return found
        if found.reason:
            reporter.message(found.reason)
        _check_cache(found.path.parent)
        grid = replace(FULL, effort=replace(FULL.effort, seconds=seconds))
        table = measure_costs(subject, grid, Watch(_tenths(reporter)))
        return Found(table, save_profile(table))
    finally:
        reporter.close()


def _tenths(reporter: Reporter) -> Callable[[int, int], None]:
    """Tells a reporter of each tenth that is done."""
    told = -1

    def progress(done: int, most: int) -> None:
        nonlocal told
        tenth = _TENTHS * done // most
        if tenth > told:
            told = tenth
            reporter.phase(f"measuring, {tenth / _TENTHS:.0%}")

    return progress


def _show(found: Found, plot: Path | None, as_json: bool) -> None:
    """To stdout, and into a file."""
    from specbatch.report.profile import print_profile, profile_as_dict  # noqa: PLC0415
    from specbatch.report.profile_plot import svg_of  # noqa: PLC0415

    table = found.table
    assert table is not None, "it was measured"
    if plot is not None:
        try:
            plot.write_text(svg_of(table), encoding="utf-8")
        except OSError as error:
            what = f"{plot} cannot be written: {error.strerror or error}"
            raise StorageError(what, "the profile itself is kept; the same command draws it again") from error
    if as_json:
        print_json(profile_as_dict(table, found.path))
        return
    with stdout_may_close():
        print_profile(table, found.path)
