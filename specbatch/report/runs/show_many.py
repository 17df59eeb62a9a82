"""Several runs as text: two side by side, or many as a row of nights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from specbatch.report.page import Page
from specbatch.report.runs.compare import FEW, TOO_FEW, Change, Comparison, TierChange
from specbatch.report.runs.names import shortened, split_shared
from specbatch.report.runs.show import moment
from specbatch.report.runs.tables import NONE, WIDE, grid, number, percent
from specbatch.report.runs.trend import Night
from specbatch.report.words import count, significant

_TICKS = "▁▂▃▄▅▆▇█"
_PLAIN_TICKS = "_.-=*#"
_NAMES = "run"


def print_comparison(comparison: Comparison, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print two runs side by side.

    Args:
        comparison: Of the two; the first is the baseline.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    page.path("baseline A", comparison.directories[0])
    page.path("compared B", comparison.directories[1])
    if not comparison.comparable:
        different = ", ".join(each.what for each in comparison.unlike if each.matters)
        page.fact(
            "WARNING",
            f"not the same job ({different}): differences are not what a policy or a machine changes",
        )
    for each in comparison.unlike:
        page.fact("differs", f"{each.what}: {each.first} | {each.second}")
    for name in comparison.only_in:
        page.fact("note", f"tier {name} is in one of the two only")
    for name, tier in comparison.tiers.items():
        page.blank()
        page.console.print(_changes(name, tier))
    page.blank()
    for name, text in beyond_noise(comparison):
        page.fact(name, f"beyond noise: {text}")
    page.fact("spread", comparison.method)
    page.fact("noise", "yes: 0 lies within the 95 % interval, so B may be no different from A")
    if any(change.too_few for tier in comparison.tiers.values() for change in tier.changes):
        page.fact("", f"too few: less than {TOO_FEW} rows have a part in it, too few to tell")


def beyond_noise(comparison: Comparison) -> list[tuple[str, str]]:
    """Tier → what is more than chance in it."""
    return [(name, _beyond(tier)) for name, tier in comparison.tiers.items()]


def _beyond(tier: TierChange) -> str:
    found = [_shift(change) for change in tier.changes if change.within_noise is False]
    if tier.changes and all(change.too_few for change in tier.changes):
        return "too few rows to tell"
    return ", ".join(found) or "nothing"


def _shift(change: Change) -> str:
    shift = change.difference or 0.0
    relative = f"{shift / change.first:+.0%}" if change.first else _signed(shift)
    return f"{change.name} {relative}"


def _changes(name: str, tier: TierChange) -> Table:
    paired = "the same rows" if tier.paired else "other rows"
    few = f"; only {min(tier.rows)}, so the interval says little" if min(tier.rows) < FEW else ""
    title = f"{name}: {count(tier.rows[0])} and {count(tier.rows[1])} rows, {paired}{few}"
    table = grid(title, "", "A", "B", "B - A", "95 % interval", "noise")
    for change in tier.changes:
        table.add_row(change.name, *_cells(change))
    return table


def _cells(change: Change) -> list[str]:
    noise = "too few" if change.too_few else {None: NONE, True: "yes", False: "no"}[change.within_noise]
    interval = NONE
    if change.low is not None and change.high is not None:
        interval = f"{_signed(change.low)} to {_signed(change.high)}"
    shift = NONE if change.difference is None else _signed(change.difference)
    if change.difference is not None and change.first:
        shift += f" ({change.difference / change.first:+.0%})"
    return [number(change.first), number(change.second), shift, interval, noise]


def _signed(value: float) -> str:
    shown = significant(abs(value))
    return shown if not shown.strip("0.") else f"{'-' if value < 0 else '+'}{shown}"


def print_trend(found: Sequence[Night], stream: TextIO | None = None, width: int | None = None) -> None:
    """Print a line per night, and how the main numbers went.

    Args:
        found: In the order they started.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    blocks = (page.console.encoding or "").lower().startswith("utf")
    page.console.print(_nights(found, page.console, "…" if blocks else "~"))
    page.blank()
    for name, values in (
        ("SLO met", [night.attainment for night in found]),
        ("goodput", [night.goodput_tokens_per_s for night in found]),
        ("throughput", [night.tokens_per_s for night in found]),
        ("p95 total", [night.e2e_p95_s for night in found]),
    ):
        known = [value for value in values if value is not None]
        if len(known) > 1:
            ends = f"from {significant(min(known))} to {significant(max(known))}"
            page.fact(name, f"{sparkline(values, blocks=blocks)}  {ends}")
    page.fact(
        "goodput", "output tokens/s of rows that kept all their promises; all tokens/s are its baseline"
    )
    for night in found:
        for problem in _told(night):
            page.fact("note" if night.started is None else _when(night)[:10], f"{night.directory}: {problem}")


def _told(night: Night) -> list[str]:
    told = [f"other {what} than the night before" for what in night.changed]
    if night.differences:
        told.append(f"{count(night.differences)} values in summary.json are not those of the tables")
    return [*told, *night.problems]


def _nights(found: Sequence[Night], console: Console, ellipsis: str) -> Table:
    """A line per night; names of directories have the room that numbers leave."""
    names = [night.name for night in found]
    bare = _night_table(found, [""] * len(found), console.width)
    others = Measurement.get(console, console.options, bare).maximum - len(_NAMES)
    room = console.width - others
    return _night_table(found, shortened(names, room, ellipsis=ellipsis), console.width)


def _night_table(found: Sequence[Night], names: Sequence[str], width: int) -> Table:
    is_wide = width >= WIDE
    wide = ("tokens per\ndevice-h", "drafts\nin vain", "J") if is_wide else ()
    headings = ("\nrows", "\nfailed", "SLO\nmet", "goodput\ntokens/s", "all\ntokens/s", "p95\ntotal s")
    table = grid(_title(found, is_wide), f"\n{_NAMES}", "\nstarted", *headings, *wide, "\nexit")
    table.columns[1].justify = "left"
    for night, name in zip(found, names, strict=True):
        hour = night.goodput_tokens_per_device_hour
        more = [NONE if hour is None else f"{hour:,.0f}", percent(night.not_accepted), number(night.joules)]
        table.add_row(
            *(name, _when(night) if is_wide else _without_year(_when(night))),
            *(count(night.rows), count(night.failed), percent(night.attainment)),
            *(number(night.goodput_tokens_per_s), number(night.tokens_per_s), number(night.e2e_p95_s)),
            *(more if is_wide else []),
            str(night.exit_code) if night.state in ("finished", "stopped") else night.state,
        )
    return table


def _title(found: Sequence[Night], is_wide: bool) -> str:
    """What all lines share: the folder, and the years where lines have no room for them."""
    folder, _ = split_shared([night.directory for night in found])
    whens = [_when(night) for night in found]
    years = sorted({when[:4] for when in whens if _without_year(when) != when})
    of = f" of {' to '.join(dict.fromkeys((years[0], years[-1])))}" if years and not is_wide else ""
    return f"Nights{of}{f' in {folder}' if folder else ''}"


def _when(night: Night) -> str:
    return NONE if night.started is None else moment(night.started)[:16]


def _without_year(when: str) -> str:
    """``2026-11-30 22:30`` → ``11-30 22:30``."""
    return when[5:] if when[:4].isdigit() and when[4:5] == "-" else when


def sparkline(values: Sequence[float | None], *, blocks: bool) -> str:
    """A column per value, from 0 to the largest; a blank where there is none."""
    ticks = _TICKS if blocks else _PLAIN_TICKS
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(
        " " if value is None else ticks[min(len(ticks) - 1, int(max(0.0, value) / top * len(ticks)))]
        for value in values
    )
