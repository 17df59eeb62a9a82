"""A profile as tables and bars for people, and as one object for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.table import Table
from rich.text import Text

from specbatch.hardware.cost import CostTable
from specbatch.report.page import Page
from specbatch.report.words import significant, size

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SOLID, _LIGHT = "█", "░"
_WIDEST_BAR = 90


def print_profile(
    table: CostTable, path: Path, stream: TextIO | None = None, width: int | None = None
) -> None:
    """Print a profile.

    Args:
        table: The profile.
        path: Where it is kept.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    page.console.print(_passes(table))
    page.blank()
    _print_bars(page, table)
    page.blank()
    if table.draft:
        page.console.print(_drafts(table))
        page.blank()
    for name, text in _facts(table):
        page.fact(name, text)
    page.path("kept in", str(path))


def profile_as_dict(table: CostTable, path: Path) -> dict[str, object]:
    """For ``--json``: the measured points, and what a table made of them is off by."""
    error = table.check_error
    content: dict[str, object] = json.loads(table.to_json())
    content["check_error"] = None if error is None else {"median": error.median, "p90": error.p90}
    return {**content, "path": str(path)}


def _passes(table: CostTable) -> Table:
    """Times of target passes by tokens and context."""
    contexts = sorted({point.context for point in table.verify})
    grid = _grid("Target pass, ms, by tokens and context")
    grid.add_column("\ntokens", justify="right", no_wrap=True)
    for layout in ("one row's tree", "a row for each"):
        for context in contexts:
            name = layout if context == contexts[0] else ""
            grid.add_column(f"{name}\n{context:,}", justify="right", no_wrap=True)
    measured = {(point.tokens, point.rows, point.context) for point in table.verify}
    for tokens in sorted({point.tokens for point in table.verify}):
        cells = [
            f"{'' if (tokens, rows, context) in measured else '~'}"
            f"{significant(1e3 * table.verify_s(tokens, context, rows))}"
            for rows in (1, tokens)
            for context in contexts
        ]
        grid.add_row(str(tokens), *cells)
    return grid


def _print_bars(page: Page, table: CostTable) -> None:
    """Target passes at the longest context: a bar for one row's tree, and what separate rows add."""
    counts = sorted({point.tokens for point in table.verify})
    context = max(point.context for point in table.verify)
    blocks = (page.console.encoding or "").lower().startswith("utf")
    solid, light = (_SOLID, _LIGHT) if blocks else ("#", ".")
    title = f"Target pass at context {context:,}: {solid} one row's tree, {light} more for a row each"
    page.console.print(Text(title, style="bold"))
    room = min(page.console.width - 16, _WIDEST_BAR)
    longest = table.verify_s(counts[-1], context)
    for tokens in counts:
        tree, rows = (table.verify_s(tokens, context, each) for each in (1, tokens))
        drawn = bar(room * tree / longest, room * rows / longest, blocks=blocks)
        page.console.print(Text(f"{tokens:>6} {drawn} {significant(1e3 * rows)}"))


def bar(solid: float, whole: float, *, blocks: bool) -> str:
    """A bar of two parts.

    Args:
        solid: Columns of the first part; its end is drawn to an eighth of a column.
        whole: Columns of both.
        blocks: Whether block characters can be shown.
    """
    if not blocks:
        return "#" * round(solid) + "." * (round(whole) - round(solid))
    full, eighths = divmod(round(8 * solid), 8)
    drawn = _SOLID * full + (_EIGHTHS[eighths] if eighths else "")
    return drawn + _LIGHT * (round(whole) - len(drawn))


def _grid(title: str) -> Table:
    return Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")


def _drafts(table: CostTable) -> Table:
    """Times of draft levels by rows and width."""
    widths = sorted({point.width for point in table.draft})
    grid = _grid("Draft, ms, by rows and width")
    grid.add_column("\nrows", justify="right", no_wrap=True)
    grid.add_column("\nfirst level", justify="right", no_wrap=True)
    for width in widths:
        name = "each level more" if width == widths[0] else ""
        grid.add_column(f"{name}\n{width}", justify="right", no_wrap=True)
    for rows in sorted({point.rows for point in table.draft}):
        levels = [significant(1e3 * table.draft_s(rows, width)) for width in widths]
        grid.add_row(str(rows), significant(1e3 * table.draft_tree_s(rows, widths[-1], 1)), *levels)
    return grid


def _facts(table: CostTable) -> Sequence[tuple[str, str]]:
    here = table.fingerprint
    chunks = [
        f"{point.tokens:,} tokens in {significant(1e3 * table.prefill_s(point.tokens))} ms"
        for point in sorted(table.prefill, key=lambda point: point.tokens)
    ]
    row = size(512 * table.bytes_per_token)
    memory = f"{size(table.bytes_per_token)} per token (a row of 512: {row})"
    facts = [
        ("prefill", ", ".join(chunks)),
        ("memory", f"{memory}, {size(table.bytes_per_node)} per drafted token while it is verified"),
    ]
    error = table.check_error
    if error is not None:
        off = f"{error.median:.0%} at the median and {error.p90:.0%} at p90"
        facts.append(("checked", f"{error.steps} passes of mixed sizes, predictions off by {off}"))
    if table.disturbed:
        facts.append(("disturbed", f"{table.disturbed}: measure again when it is quiet, with --force"))
    model = f"{here.model} ({here.quantization})" if here.quantization != "none" else here.model
    machine = f"{here.processor}, {here.threads} threads, {here.kernels}, {here.dtype}"
    return [
        *facts,
        ("model", f"{model}, drafter {here.drafter}"),
        ("machine", machine),
        ("measured", f"{table.measured_at}, {table.effort}, in {table.seconds:.0f} s"),
    ]
