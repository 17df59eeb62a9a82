"""The page of one run."""

from __future__ import annotations

from specbatch.progress import duration
from specbatch.report.runs.fates import FATES, NOTHING
from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.html.draft_charts import draft_charts, energy_charts, energy_table, fate_table
from specbatch.report.runs.html.elements import cards, document, figures, notes, paragraph, section, table
from specbatch.report.runs.html.tier_charts import latency_charts, promise_charts, share_charts
from specbatch.report.runs.html.time_charts import time_charts
from specbatch.report.runs.promises import ALL
from specbatch.report.runs.record import RunRecord
from specbatch.report.runs.show import energy_in_words, moment, rows, state
from specbatch.report.runs.tables import COMPUTED, NONE, large, number, percent, tier_names
from specbatch.report.summary import LATENCIES, QUANTILES
from specbatch.report.words import count, size

_LATENCY_NAMES = ("queued s", "TTFT s", "TPOT ms", "total s")
_MANY = 40


def run_page(report: RunReport, record: RunRecord) -> str:
    """The page of one run.

    Args:
        report: Its numbers.
        record: What they were computed from.
    """
    title = f"{report.directory}: specbatch report"
    head = (f"<h1>{_escaped(report.directory)}</h1>", paragraph(_head(report), "dim"), *_warnings(report))
    if not report.summary["rows"]["total"]:
        return document(title, *head)
    return document(
        title,
        *head,
        _cards(report),
        section(
            "Promises", figures(promise_charts(report)), _promises(report), paragraph(_defined(report), "dim")
        ),
        section("Latency", figures(latency_charts(report, record)), _latencies(report)),
        section("Where every drafted token went", *_drafts(report)),
        section("Over time", figures(time_charts(report)), _decisions(report)),
        section("Who had the device", figures(share_charts(report)), _shares(report), _owners(report)),
        section("Energy", paragraph(energy_in_words(report.summary["energy"])), *_energy(report)),
        section("Failures", _failures(report)),
        section("Memory and engine", _machine(report)),
        section("Checked against summary.json", *_check(report)),
    )


def _escaped(content: str) -> str:
    return paragraph(content)[3:-4]


def _head(report: RunReport) -> str:
    spent = report.summary["time"]
    started = NONE if report.started is None else moment(report.started)
    model = report.summary["model"]
    quantization = f" ({model['quantization']})" if model.get("quantization") else ""
    named = f"{model.get('name') or 'unknown'}{quantization}"
    return (
        f"{state(report)}. Started {started}; {duration(spent['device_seconds'])} of the device, "
        f"{duration(spent['engine_seconds'])} of it in the engine. Model {named}, "
        f"policy {report.policy or 'unknown'}. Rows: {rows(report)}. specbatch {report.summary['specbatch']}."
    )


def _warnings(report: RunReport) -> list[str]:
    differences = [
        f"{each.field}: {each.recorded} recorded, {each.recomputed} computed"
        for each in report.check.differences[:_MANY]
    ]
    return [
        notes("What is missing or damaged", report.problems),
        notes(f"summary.json differs from the tables in {len(report.check.differences)} values", differences),
    ]


def _cards(report: RunReport) -> str:
    rates, slo = report.summary["rates"], report.summary["slo"]
    kept, promised = report.promises[ALL], report.summary["slo"]["rows_with_slo"] > 0
    hour = rates["goodput_tokens_per_device_hour"]
    joule = report.summary["energy"].get("goodput_tokens_per_joule")
    measured = isinstance(joule, int | float)
    reason = (
        "tokens of rows that kept their promises" if measured else energy_in_words(report.summary["energy"])
    )
    entries = [
        (
            "SLO-attaining tokens per device-hour",
            f"{hour:,.0f}" if hour is not None and promised else NONE,
            "output of rows that kept every promise, over all device time, start-up included",
        ),
        ("SLO-attaining tokens per joule", number(joule) if measured else "null", reason),
        (
            "promises kept",
            percent(kept.attainment),
            f"{count(slo['rows_attained'])} of {count(slo['rows_with_slo'])} rows with promises; "
            f"violation ratio {percent(kept.violation_ratio)}",
        ),
        (
            "goodput, tokens/s",
            number(kept.goodput_tokens_per_s) if promised else NONE,
            f"of {number(kept.tokens_per_s)} tokens/s of all rows; baseline: {report.baseline}",
        ),
    ]
    wasted = report.drafts[ALL].wasted
    if report.drafts[ALL].draft.tokens:
        told = f"of all FLOPs; {percent(wasted.of_tokens)} of the drafted tokens were not accepted"
        entries.append(("drafts in vain", percent(wasted.of_flops), told))
    return cards(entries)


def _promises(report: RunReport) -> str:
    lines = []
    for name in tier_names(report):
        kept = report.promises[name]
        missed = ", ".join(f"{count(n)} {why.replace('_', ' ')}" for why, n in kept.missed_by_reason.items())
        lines.append(
            [
                *(
                    name,
                    kept.definition.replace("<=", "≤") if name != ALL else "all of the above",
                    missed or NONE,
                ),
                *(
                    count(kept.rows),
                    count(kept.with_slo),
                    percent(kept.attainment),
                    percent(kept.violation_ratio),
                ),
                *(number(kept.goodput_tokens_per_s) if kept.with_slo else NONE, number(kept.tokens_per_s)),
            ]
        )
    headings = (
        "tier",
        "promised (SLO)",
        "missed",
        "rows",
        "with SLO",
        "kept",
        "violated",
        "goodput",
        "all tokens/s",
    )
    return table("Promises by tier", headings, lines, words=3)


def _defined(report: RunReport) -> str:
    return (
        "Goodput: output tokens per second of rows that kept all they were promised, beside all tokens/s. "
        f"Baseline: {report.baseline}. Ratios are never multiplied with each other."
    )


def _latencies(report: RunReport) -> str:
    tiers = {**report.summary["tiers"], **({} if len(report.summary["tiers"]) == 1 else {ALL: None})}
    lines = []
    for name, tier in tiers.items():
        latency = report.summary["latency"] if tier is None else tier["latency"]
        points = [[number(latency[each][f"p{q}"]) for q in QUANTILES] for each in LATENCIES]
        lines.append([name, *(" / ".join(three) for three in points)])
    return table("Latency by tier, p50 / p95 / p99", ("tier", *_LATENCY_NAMES), lines)


def _drafts(report: RunReport) -> list[str]:
    if not report.drafts[ALL].draft.tokens:
        return [paragraph("Nothing was drafted in this run.")]
    lines = []
    for name in tier_names(report):
        found = report.drafts[name]
        went = [count(found.fates[fate].tokens) for fate in FATES]
        lines.append(
            [name, count(found.draft.tokens), *went, count(found.trimmed), count(found.verifications)]
        )
    headings = ("tier", "drafted", *FATES, "trimmed", "verifications")
    return [
        figures(draft_charts(report)),
        table("Drafted tokens by tier", headings, lines),
        fate_table(report, [*FATES, *([NOTHING] if report.drafts[ALL].fates[NOTHING].flops else [])]),
    ]


def _decisions(report: RunReport) -> str:
    choices = report.choices
    if choices is None:
        return paragraph("No decisions were recorded.")
    lines = [
        [event, reason.replace("_", " "), count(lines)]
        for event, reasons in choices.events.items()
        for reason, lines in reasons.items()
    ]
    if choices.expected_tokens is not None:
        predicted = f"{choices.expected_tokens:,.0f} tokens were expected of rows that never fell back"
        came = f"{count(choices.tokens)} came ({(choices.calibration_error or 0.0):+.1%})"
        told = paragraph(f"{predicted}, {came}.")
    else:
        told = ""
    return (table("Decisions", ("event", "reason", "lines"), lines, words=2) if lines else "") + told


def _shares(report: RunReport) -> str:
    due = report.summary["shares"]
    total = report.promises[ALL].verified_tokens
    lines = []
    for name in tier_names(report):
        mine, owed = report.promises[name].verified_tokens, due["entitled_tokens"].get(name)
        had = due["achieved_tokens"].get(name, 0.0)
        owing = (
            (NONE, NONE, NONE)
            if owed is None
            else (f"{owed:,.0f}", f"{had:,.0f}", number(had / owed if owed else None))
        )
        lines.append([name, count(mine), percent(mine / total if total else None), *owing])
    fairness = due["fairness"]
    jain = (
        ""
        if fairness is None
        else f" Fairness (Jain's index of had / due over tiers with a share): {fairness:.3f}."
    )
    told = f"Computed: {COMPUTED}. Due is a tier's guaranteed share while it had rows.{jain}"
    return table(
        "Computed tokens by tier", ("tier", "computed", "of all", "due", "had", "had / due"), lines
    ) + paragraph(told, "dim")


def _owners(report: RunReport) -> str:
    if not report.owners:
        return ""
    lines = []
    for account in report.owners:
        uses = [*account.tiers.items(), *([(ALL, account.whole)] if len(account.tiers) > 1 else [])]
        for place, (tier, use) in enumerate(uses):
            last = place == len(uses) - 1
            quota = NONE if account.quota is None else count(account.quota)
            lines.append(
                [
                    *(account.owner or "(no owner)", tier, count(use.rows), count(use.output_tokens)),
                    *(count(use.verified_tokens), number(use.device_s), number(use.joules)),
                    *((quota, percent(account.of_quota)) if last else ("", "")),
                ]
            )
    headings = ("owner", "tier", "rows", "output", "computed", "device s", "joules", "quota", "used")
    return table("Use by owner and tier", headings, lines, words=2)


def _energy(report: RunReport) -> list[str]:
    return [figures(energy_charts(report)), energy_table(report)]


def _failures(report: RunReport) -> str:
    lines = []
    for failure in report.summary["failures"]:
        first = failure["first"][0]
        lines.append(
            [failure["status"], failure["code"] or NONE, first["message"] or NONE, count(failure["rows"])]
        )
    return (
        table("Rows that failed, by reason", ("status", "reason", "the first says", "rows"), lines, words=3)
        if lines
        else ""
    )


def _machine(report: RunReport) -> str:
    memory, engine, found = report.memory, report.summary["engine"], report.calibration
    steps = engine.get("fallback_steps")
    told = [
        ("resident memory, peak", NONE if memory.peak_resident is None else size(memory.peak_resident)),
        ("keys and values, peak", NONE if memory.kv_peak is None else size(memory.kv_peak)),
        ("keys and values, all pages", NONE if memory.kv_total is None else size(memory.kv_total)),
        ("draft trees, peak", NONE if memory.tree_peak is None else size(memory.tree_peak)),
        ("slots empty in rows' pages at their end", percent(memory.fragmentation)),
        ("preemptions", count(sum(report.preemptions.values()))),
        ("tokens computed again", count(report.summary["tokens"]["recomputed"])),
        ("tokens lost by attempts that ended early", count(report.lost_tokens)),
        ("steps", f"{engine.get('steps') or NONE}"),
        ("steps that fell back to plain decoding", NONE if steps is None else f"{steps}"),
        ("why, mostly", str(engine.get("fallback") or NONE)),
        ("calibration error", NONE if found is None else f"{found.error:.4f}"),
        ("of the drafter's own probabilities", NONE if found is None else f"{found.error_reported:.4f}"),
        (
            "FLOPs, drafts included",
            large(sum(report.summary["compute"][f"{n}_flops"] for n in ("prefill", "verify", "draft"))),
        ),
    ]
    return table("Memory and engine", ("what", "how much"), [list(line) for line in told])


def _check(report: RunReport) -> list[str]:
    check = report.check
    told = [paragraph(check.note)] if check.note else []
    if check.compared and not check.differences:
        told.append(paragraph(f"All {count(check.compared)} values in summary.json follow from the tables."))
    if check.differences:
        lines = [[each.field, str(each.recorded), str(each.recomputed)] for each in check.differences]
        told.append(table("Values that differ", ("field", "recorded", "computed"), lines[:_MANY], words=3))
    return told
