"""The summary of a run as text for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

from specbatch.progress import duration
from specbatch.report.summary import LATENCIES, QUANTILES, Quantiles, Summary, TierSummary
from specbatch.rows import Status

_HEADINGS = ("tier", "rows", "SLO met", "queued s", "TTFT s", "TPOT ms", "total s")
_WIDE = 100


def print_summary(
    summary: Summary, directory: Path, stream: TextIO | None = None, width: int | None = None
) -> None:
    """Print what a run came to.

    Args:
        summary: Content of ``summary.json``.
        directory: The run directory.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    console = Console(file=stream or sys.stdout, width=width, highlight=False)
    console.print(_tiers(summary, QUANTILES if console.width >= _WIDE else QUANTILES[:2]))
    for name, text in _facts(summary):
        console.print(f"[bold]{name:<11}[/bold] {text}", soft_wrap=True)
    console.print(f"[bold]{'results':<11}[/bold] {directory / 'results.parquet'}", soft_wrap=True)


def _tiers(summary: Summary, shown: tuple[int, ...]) -> Table:
    caption = "latencies: " + "/".join(f"p{quantile}" for quantile in shown)
    table = Table(caption=caption, caption_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for name, tier in summary["tiers"].items():
        table.add_row(*_cells(name, tier, shown))
    if len(summary["tiers"]) != 1:
        table.add_row(*_cells("all", _whole(summary), shown))
    return table


def _whole(summary: Summary) -> TierSummary:
    return {
        "rows": summary["rows"]["total"],
        "output_tokens": summary["tokens"]["output"],
        "slo": summary["slo"],
        "latency": summary["latency"],
    }


def _cells(name: str, tier: TierSummary, shown: tuple[int, ...]) -> list[str]:
    attainment = tier["slo"]["attainment"]
    met = "-" if attainment is None else f"{attainment:.0%}"
    latencies = [_quantiles(tier["latency"][latency], shown) for latency in LATENCIES]
    return [name, str(tier["rows"]), met, *latencies]


def _quantiles(values: Quantiles, shown: tuple[int, ...]) -> str:
    numbers = [values[f"p{quantile}"] for quantile in shown]
    return "/".join("-" if number is None else _number(number) for number in numbers)


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _facts(summary: Summary) -> list[tuple[str, str]]:
    rates, slo, tokens = summary["rates"], summary["slo"], summary["tokens"]
    counts = summary["rows"]["by_status"]
    ended = [f"{counts[status.value]} {status.value}" for status in Status if counts.get(status.value)]
    facts = [("rows", f"{summary['rows']['total']}: {', '.join(ended) or 'none'}")]
    shared = f" ({tokens['cached_prompt']} shared)" if tokens["cached_prompt"] else ""
    facts.append(("tokens", f"{tokens['prompt']} prompt{shared}, {tokens['output']} output"))
    if rates["output_tokens_per_s"] is not None:
        seconds = summary["time"]["engine_seconds"]
        facts.append(
            (
                "throughput",
                f"{_number(rates['output_tokens_per_s'])} output tokens/s over {duration(seconds)}",
            )
        )
    if slo["attainment"] is not None and rates["goodput_tokens_per_s"] is not None:
        facts.append(
            ("SLO", f"{slo['rows_attained']} of {slo['rows_with_slo']} rows kept all their promises")
        )
        free = summary["rows"]["total"] - slo["rows_with_slo"]
        goodput = f"{_number(rates['goodput_tokens_per_s'])} tokens/s of rows that kept all their promises"
        facts.append(("goodput", goodput + (f"; {free} rows had none" if free else "")))
    peak = summary["memory"].get("peak_resident_bytes")
    if isinstance(peak, int | float) and peak:
        facts.append(("memory", f"{peak / 2**20:.0f} MiB peak"))
    return facts
