"""Drawings by tier: latencies, promises kept, shares of the budget."""

from __future__ import annotations

from specbatch.report.runs.columns import numbers, of_tier, tiers_of
from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.html.charts import Bar, Frame, bars, ecdf
from specbatch.report.runs.promises import ALL
from specbatch.report.runs.record import RunRecord
from specbatch.report.runs.tables import COMPUTED, number, percent, tier_names
from specbatch.report.words import count, significant

Drawn = list[tuple[str, str]]
"""Drawings with their captions."""

_KINDS = {
    "ttft_s": ("Time to first token", "seconds"),
    "tpot_ms": ("Time per output token", "milliseconds"),
    "e2e_s": ("Arrival to last token", "seconds"),
    "queued_s": ("Waiting for a place", "seconds"),
}


def latency_charts(report: RunReport, record: RunRecord) -> Drawn:
    """Distributions of latencies with SLO lines: shares of rows that took at most so long."""
    drawn = []
    tiers = tiers_of(record.rows)
    for kind, (title, unit) in _KINDS.items():
        values = {tier: numbers(of_tier(record.rows, tier), kind) for tier in tiers}
        limits, by_row = {}, False
        for tier in tiers:
            for limit in report.promises[tier].limits:
                if limit.kind == kind:
                    limits[tier] = limit.middle
                    some = 0 < limit.rows < report.promises[tier].rows
                    by_row |= some or limit.most - limit.least > 1e-6 * limit.most
        told = "; ".join(_half(report, tier, kind, unit) for tier in tiers)
        caption = "Share of rows at or below each value; every row counts, nothing is smoothed."
        if limits:
            caption += " Dotted: SLO" + (", the median of rows that have one." if by_row else ".")
        frame = Frame(f"ecdf-{kind}", title, told, unit)
        drawn.append((ecdf(frame, values, limits), caption))
    return drawn


def _half(report: RunReport, tier: str, kind: str, unit: str) -> str:
    points = report.summary["tiers"][tier]["latency"][kind]
    return (
        f"{tier}: half of the rows within {number(points['p50'])} {unit}, 95 % within {number(points['p95'])}"
    )


def promise_charts(report: RunReport) -> Drawn:
    """Attainment, and goodput beside all output, by tier."""
    promised = [name for name in tier_names(report) if report.promises[name].with_slo]
    if not promised:
        return []
    kept = {name: report.promises[name] for name in promised}
    attained = [
        Bar(
            name,
            [each.attainment or 0.0],
            f"{percent(each.attainment)} of {count(each.with_slo)}",
            outline=1.0,
        )
        for name, each in kept.items()
    ]
    speeds = [
        Bar(
            name,
            [each.goodput_tokens_per_s or 0.0],
            f"{number(each.goodput_tokens_per_s)} of {number(each.tokens_per_s)}",
            outline=each.tokens_per_s,
        )
        for name, each in kept.items()
    ]
    told = [", ".join(f"{row.label}: {row.tail}" for row in rows) for rows in (attained, speeds)]
    return [
        (
            bars(Frame("attainment", "Rows that kept their promises", told[0]), ("kept",), attained, 1.0),
            "Of rows with promises; each row counts once, with all of its promises.",
        ),
        (
            bars(Frame("goodput", "Goodput, tokens/s", told[1], "tokens/s"), ("goodput",), speeds),
            f"Filled: rows that kept their promises. Frame: all rows. Baseline: {report.baseline}.",
        ),
    ]


def share_charts(report: RunReport) -> Drawn:
    """Computed tokens by tier, with what was due."""
    names = [name for name in tier_names(report) if name != ALL]
    total = sum(report.promises[name].verified_tokens for name in names)
    if len(names) < 2 or not total:
        return []
    due = report.summary["shares"]["entitled_tokens"]
    rows = [
        Bar(
            name,
            [report.promises[name].verified_tokens],
            f"{percent(report.promises[name].verified_tokens / total)}"
            + (f", due {significant(due[name])}" if name in due else ""),
            mark=due.get(name),
        )
        for name in names
    ]
    told = ", ".join(f"{row.label}: {row.tail}" for row in rows)
    frame = Frame("shares", "Computed tokens by tier", told, "tokens")
    return [
        (
            bars(frame, ("computed",), rows),
            f"The budget of target passes: {COMPUTED}. A line across: the guaranteed share.",
        )
    ]
