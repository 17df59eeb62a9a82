"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from rich.table import Table

from specbatch.bench.figures import TOTAL, Spread
from specbatch.bench.results import GOODPUT, THROUGHPUT, CaseResult, PolicyResult
from specbatch.report.page import Page
from specbatch.report.words import significant

_WIDE = 100


def print_case(result: CaseResult, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print a case.

    Args:
        result: Of the case.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    wide = page.console.width >= _WIDE
    rounds = result.rounds
    page.console.print(
        f"{rounds.case.name}: {len(rounds.prompts)} rows, {len(rounds.rounds)} repeats", style="bold"
    )
    page.console.print(_totals(result, wide))
    for tier in next(iter(result.policies.values())).by_tier:
        if tier != TOTAL:
            page.blank()
            page.console.print(_tier(result, tier, wide))
    page.blank()


def _grid(title: str) -> Table:
    grid = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    grid.add_column("\npolicy", no_wrap=True)
    return grid


def _totals(result: CaseResult, wide: bool) -> Table:
    grid = _grid("")
    columns: list[tuple[str, Callable[[PolicyResult], str]]] = [
        ("output\ntok/s", lambda each: _middle(each.by_tier[TOTAL][THROUGHPUT])),
        ("ratio to off\nmin-max", lambda each: _spread(each.to_off)),
        ("SLO\nmet", lambda each: _percent(each.by_tier[TOTAL]["attainment"])),
        ("goodput\ntok/s", lambda each: _middle(each.by_tier[TOTAL][GOODPUT])),
        ("ratio\nto best", lambda each: _middle(each.to_best)),
        ("acc. per\npass", lambda each: _middle(each.by_tier[TOTAL]["accepted_per_pass"])),
        ("re-\njected", lambda each: _percent(each.by_tier[TOTAL]["rejected_share"])),
        ("sel.\ntime", lambda each: _percent(each.by_tier[TOTAL]["selection_share"], 1)),
    ]
    for heading, _ in columns:
        grid.add_column(heading, justify="right", no_wrap=True)
    for each in result.policies.values():
        grid.add_row(each.policy, *(cell(each) for _, cell in columns))
    return grid


def _tier(result: CaseResult, tier: str, wide: bool) -> Table:
    grid = _grid(tier)
    points = (50, 95, 99) if wide else (50, 95)
    named = "/".join(f"p{point}" for point in points)
    for heading in (
        "SLO\nmet",
        "output\ntok/s",
        *(f"{name}\n{named}" for name in ("TPOT ms", "TTFT s", "total s")),
    ):
        grid.add_column(heading, justify="right", no_wrap=True)
    for each in result.policies.values():
        found = each.by_tier[tier]
        latencies = [
            "/".join(_middle(found[f"{name}_p{point}"]) for point in points)
            for name in ("tpot_ms", "ttft_s", "e2e_s")
        ]
        grid.add_row(each.policy, _percent(found["attainment"]), _middle(found[THROUGHPUT]), *latencies)
    return grid


def _middle(spread: Spread | None) -> str:
    return "-" if spread is None else significant(spread.median)


def _spread(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} {spread.low:.2f}-{spread.high:.2f}"


def _percent(spread: Spread | None, digits: int = 0) -> str:
    return "-" if spread is None else f"{spread.median:.{digits}%}"
