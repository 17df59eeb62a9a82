"""The summary of a run as text for people: on a terminal, or in the mail that cron sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.table import Table

from specbatch.progress import duration
from specbatch.report.energy import Energy
from specbatch.report.failures import Failure
from specbatch.report.page import Page
from specbatch.report.summary import LATENCIES, QUANTILES, Quantiles, Summary, TierSummary
from specbatch.rows import Status

_HEADINGS = ("queued s", "TTFT s", "TPOT ms", "total s")
_WIDE = 100


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended.

    Attributes:
        directory: The run directory.
        exit_code: Of the process.
        reason: Why it is not 0; empty when it is.
    """

    directory: Path
    exit_code: int
    reason: str


def print_summary(
    summary: Summary, ending: Ending, stream: TextIO | None = None, width: int | None = None
) -> None:
    """Print what a run came to.

    Args:
        summary: Content of ``summary.json``.
        ending: How the run ended.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    if summary["tiers"]:
        page.console.print(latency_table(summary, page.console.width))
        page.blank()
    for name, text in _facts(summary):
        page.fact(name, text)
    print_failures(page, summary)
    page.path("results", str(ending.directory / "results.parquet"))
    page.fact("verdict", f"exit code {ending.exit_code}: {ending.reason or _praise(summary)}")


def print_failures(page: Page, summary: Summary) -> None:
    """Why rows failed, with the first of each reason; nothing where none did."""
    if summary["failures"]:
        page.fact("failed", f"{_rows(_failed(summary))}, by reason:")
        for failure in summary["failures"]:
            _print_failure(page, failure)


def latency_table(summary: Summary, width: int) -> Table:
    """A row per tier: promises kept, and latencies.

    Args:
        summary: Of the run.
        width: Columns that there are; wide ones hold p99, too.
    """
    shown = QUANTILES if width >= _WIDE else QUANTILES[:2]
    quantiles = "/".join(f"p{quantile}" for quantile in shown)
    table = Table(box=None, pad_edge=False)
    # Only a tier's name may be broken: half a number is a wrong number.
    table.add_column("tier", overflow="fold")
    for heading in ("rows", "SLO met", *(f"{name}\n{quantiles}" for name in _HEADINGS)):
        table.add_column(heading, justify="right", no_wrap=True)
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
        "speculation": summary["speculation"],
        "promises": summary["promises"],
    }


def _cells(name: str, tier: TierSummary, shown: tuple[int, ...]) -> list[str]:
    attainment = tier["slo"]["attainment"]
    met = "-" if attainment is None else f"{attainment:.0%}"
    latencies = [_quantiles(tier["latency"][latency], shown) for latency in LATENCIES]
    return [name, str(tier["rows"]), met, *latencies]


def _quantiles(values: Quantiles, shown: tuple[int, ...]) -> str:
    numbers = [values[f"p{quantile}"] for quantile in shown]
    return "-" if None in numbers else "/".join(_number(number or 0.0) for number in numbers)


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _facts(summary: Summary) -> list[tuple[str, str]]:
    rates, slo, tokens = summary["rates"], summary["slo"], summary["tokens"]
    counts = summary["rows"]["by_status"]
    ended = [f"{counts[status.value]:,} {status.value}" for status in Status if counts.get(status.value)]
    facts = [("rows", f"{summary['rows']['total']:,}: {', '.join(ended) or 'none'}")]
    shared = f" ({tokens['cached_prompt']:,} shared)" if tokens["cached_prompt"] else ""
    facts.append(("tokens", f"{tokens['prompt']:,} prompt{shared}, {tokens['output']:,} output"))
    if rates["output_tokens_per_s"]:
        speed = f"{_number(rates['output_tokens_per_s'])} output tokens/s"
        facts.append(("throughput", f"{speed} over {duration(summary['time']['engine_seconds'])}"))
    else:
        facts.append(("throughput", "-"))  # nothing was decoded: reused answers took no time of this run
    facts += _speculation(summary)
    if slo["attainment"] is not None:
        kept = f"{slo['rows_attained']:,} of {slo['rows_with_slo']:,} rows kept all their promises"
        free = summary["rows"]["total"] - slo["rows_with_slo"]
        facts.append(("SLO", kept + (f"; {free:,} had none" if free else "")))
        facts.append(("goodput", _goodput(summary)))
    drift = summary["engine"].get("profile_drift")
    if drift:
        again = "specbatch profile --force measures again, on a quiet machine"
        facts.append(("profile", f"{drift} as long as it says, which was allowed for; {again}"))
    facts += _treated(summary) + _energy(summary["energy"])
    peak = summary["memory"].get("peak_resident_bytes")
    if isinstance(peak, int | float) and peak:
        facts.append(("memory", f"{peak / 2**20:,.0f} MiB peak"))
    return facts


def _goodput(summary: Summary) -> str:
    """Of a run with promises; a dash where those that were kept took no time of this run."""
    good = summary["rates"]["goodput_tokens_per_s"]
    if not summary["slo"]["rows_attained"]:
        good = 0.0
    if good is None:
        return "-"
    return f"{_number(good) if good else '0'} tokens/s of rows that kept them"


def _speculation(summary: Summary) -> list[tuple[str, str]]:
    """How drafting went; nothing when nothing was drafted, unless that is a drafter's fault."""
    drafts, facts = summary["speculation"], []
    if drafts["drafted"] and drafts["tokens_per_pass"] is not None:
        made = f"{_number(drafts['tokens_per_pass'])} tokens per pass"
        taken = f"{drafts['accepted']:,} of {drafts['drafted']:,} drafted tokens accepted"
        facts.append(("speculation", f"{made}, {taken}"))
        share = drafts["rejected_flop_share"]
        if share is not None:
            facts.append(("wasted", f"{share:.0%} of the computation went into rejected tokens"))
    engine = summary["engine"]
    steps, fallback = engine.get("fallback_steps"), engine.get("fallback")
    if isinstance(steps, int) and steps:
        why = str(fallback).removeprefix("plain decoding: ")
        facts.append(("fallback", f"{steps:,} of {engine.get('steps'):,} steps decoded plainly: {why}"))
    fault = engine.get("draft_fault")
    return [*facts, ("drafter", str(fault).removeprefix("drafter "))] if fault else facts


def _energy(energy: Energy) -> list[tuple[str, str]]:
    """What was measured, or assumed; nothing without a meter."""
    joules, each, rejected = energy["joules"], energy["joules_per_output_token"], energy["rejected_joules"]
    if joules is None:
        return []
    told = [f"{f'{joules:,.0f}' if joules >= 100 else _number(joules)} J ({energy['method']})"]
    if each is not None:
        told.append(f"{_number(each)} J per output token")
    if rejected is not None and joules > 0:
        told.append(f"{rejected / joules:.0%} of it for rejected tokens")
    return [("energy", ", ".join(told))]


def _treated(summary: Summary) -> list[tuple[str, str]]:
    """Which tiers missed promises, and which had rows that ran under another tier, and why."""
    promises = {tier: each["promises"] for tier, each in summary["tiers"].items()}
    told = {
        "missed": {tier: each["missed"] for tier, each in promises.items()},
        "moved": {tier: each["moved"] for tier, each in promises.items()},
    }
    facts = [
        (label, "; ".join(_reasons(tier, counts) for tier, counts in tiers.items() if counts))
        for label, tiers in told.items()
    ]
    return [(label, text) for label, text in facts if text]


def _reasons(tier: str, counts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items())
    return f"{tier} {listed}"


def _print_failure(page: Page, failure: Failure) -> None:
    code = f": {failure['code']}" if failure["code"] else ""
    page.item(f"{_rows(failure['rows'])} {failure['status']}{code}")
    for row in failure["first"]:
        named = "a row" if row["row_index"] is None else f"row {row['row_index']}"
        # Messages in the results begin with the row's number.
        message = (row["message"] or "no message").removeprefix(f"{named}: ")
        label = named if row["id"] is None else f"{named} (id {row['id']})"
        page.detail(f"{label}: {message}")
    if failure["rows"] > len(failure["first"]):
        page.detail(f"and {failure['rows'] - len(failure['first']):,} more")


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _failed(summary: Summary) -> int:
    return sum(failure["rows"] for failure in summary["failures"])


def _praise(summary: Summary) -> str:
    failed, total = _failed(summary), summary["rows"]["total"]
    if failed:
        return f"{total - failed:,} of {total:,} rows succeeded, the others are tolerated"
    return f"all {total:,} rows succeeded" if total else "there were no rows"
