"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.table import Table
from rich.text import Text

from specbatch.bench.cases import seconds
from specbatch.bench.facts import facts
from specbatch.bench.figures import TOTAL, Spread
from specbatch.bench.results import GOODPUT, THROUGHPUT, CaseResult, PolicyResult
from specbatch.report.page import Page
from specbatch.report.words import significant

_WIDE = 100
_LATENCIES = {"tpot_ms": "TPOT ms", "ttft_s": "TTFT s", "e2e_s": "total s"}


def print_case(result: CaseResult, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print a case: all rows, each tier, and what the numbers mean.

    Args:
        result: Of the case.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    wide = page.console.width >= _WIDE
    page.console.print(_all_rows(result, wide))
    for tier in next(iter(result.policies.values())).by_tier:
        if tier != TOTAL:
            page.blank()
            page.console.print(_one_tier(result, tier, wide))
    page.blank()
    for name, text in facts(result):
        page.fact(name, text)
    page.blank()


def print_overview(
    results: Sequence[CaseResult], stream: TextIO | None = None, width: int | None = None
) -> None:
    """Print several cases side by side: throughput against plain decoding, and promises kept.

    Args:
        results: Of the cases; all with the same policies.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    figures: list[tuple[str, Callable[[PolicyResult], str]]] = [
        ("Output tokens/s against off, median and range", lambda each: _spread(each.to_off))
    ]
    if any(each.by_tier[TOTAL]["attainment"] for result in results for each in result.policies.values()):
        figures.append(("SLO met", lambda each: _percent(each.by_tier[TOTAL]["attainment"])))
    for title, cell in figures:
        grid = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
        grid.add_column("case", overflow="fold")
        for policy in results[0].policies:
            grid.add_column(policy, justify="right", no_wrap=True)
        for result in results:
            grid.add_row(result.rounds.case.name, *(cell(each) for each in result.policies.values()))
        page.console.print(grid)
        page.blank()


def _grid(title: str, headings: Iterator[str]) -> Table:
    grid = Table(box=None, pad_edge=False, title=Text(title), title_justify="left", title_style="bold")
    grid.add_column("\npolicy", no_wrap=True)
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _all_rows(result: CaseResult, wide: bool) -> Table:
    rounds = result.rounds
    repeats = "1 repeat" if len(rounds.rounds) == 1 else f"medians of {len(rounds.rounds)} repeats"
    rows = [_total_cells(each, wide) for each in result.policies.values()]
    title = f"{rounds.case.name}: {len(rounds.prompts)} rows, {repeats}"
    grid = _grid(title, iter(rows[0]))
    for policy, cells in zip(result.policies, rows, strict=True):
        grid.add_row(policy, *cells.values())
    return grid


def _total_cells(each: PolicyResult, wide: bool) -> dict[str, str]:
    """Heading → cell."""
    found = each.by_tier[TOTAL]
    cells = {
        "output\ntok/s": _middle(found[THROUGHPUT]),
        "ratio to off\nmin-max": _spread(each.to_off),
        "SLO\nmet": _percent(found["attainment"]),
        "goodput\ntok/s": _middle(found[GOODPUT]),
    }
    cells |= (
        {"ratio to best\nmin-max": _spread(each.to_best)} if wide else {"to\nbest": _middle(each.to_best)}
    )
    cells |= _draft_cells(found)
    if wide:
        cells["sat out\nper step"] = _middle(found["rested_per_step"])
    return cells | {"time\nsel.": _percent(found["selection_share"], 1)}


def _one_tier(result: CaseResult, tier: str, wide: bool) -> Table:
    rows = [_tier_cells(each, tier, wide) for each in result.policies.values()]
    grid = _grid(_promises(result, tier), iter(rows[0]))
    for policy, cells in zip(result.policies, rows, strict=True):
        grid.add_row(policy, *cells.values())
    return grid


def _tier_cells(each: PolicyResult, tier: str, wide: bool) -> dict[str, str]:
    """Heading → cell."""
    found = each.by_tier[tier]
    points = (50, 95, 99) if wide else (50, 95)
    named = "/".join(f"p{point}" for point in points)
    cells = {"SLO\nmet": _percent(found["attainment"])}
    if wide:
        cells |= {"\nmin-max": _range(found["attainment"]), "output\ntok/s": _middle(found[THROUGHPUT])}
    cells["goodput\ntok/s"] = _middle(found[GOODPUT])
    for name, heading in _LATENCIES.items():
        cells[f"{heading}\n{named}"] = "/".join(_middle(found[f"{name}_p{point}"]) for point in points)
    return cells | _draft_cells(found)


def _draft_cells(found: dict[str, Spread | None]) -> dict[str, str]:
    return {
        "acc./\npass": _middle(found["accepted_per_pass"]),
        "re-\njected": _percent(found["rejected_share"]),
    }


def _promises(result: CaseResult, tier: str) -> str:
    """A tier, its rows and what they are promised."""
    case, plain = result.rounds.case, result.rounds.plain
    count = sum(prompt.tier == tier for prompt in result.rounds.prompts)
    rows = "1 row" if count == 1 else f"{count} rows"
    mix = case.mixes.get(tier)
    if mix is None:
        return f"{tier}: {rows}"
    named = [
        f"{kind} within {amount}" + (f" = {_time(seconds(amount, kind, plain))}" if amount.of else "")
        for kind, amount in mix.promises.items()
    ]
    return f"{tier}: {rows}, {', '.join(named) or 'promised nothing'}"


def _time(value: float) -> str:
    return f"{significant(value)} s" if value >= 1.0 else f"{significant(1e3 * value)} ms"


def _middle(spread: Spread | None) -> str:
    return "-" if spread is None else significant(spread.median)


def _spread(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} {spread.low:.2f}-{spread.high:.2f}"


def _percent(spread: Spread | None, digits: int = 0) -> str:
    return "-" if spread is None else f"{spread.median:.{digits}%}"


def _range(spread: Spread | None) -> str:
    return "" if spread is None else f"{100 * spread.low:.0f}-{100 * spread.high:.0f}"
