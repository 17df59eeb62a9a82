"""One run's report as text: on a terminal, or in a mail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from specbatch.progress import duration
from specbatch.report.page import Page
from specbatch.report.runs.check import Check
from specbatch.report.runs.fates import FATES
from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.promises import ALL
from specbatch.report.runs.tables import COMPUTED, costs, drafts, owners, promises, shares
from specbatch.report.terminal import latency_table, print_failures
from specbatch.report.words import count, significant, size
from specbatch.rows import Status

MANY = 8
"""Differences from the summary that are listed; the others are counted."""

_SIGNS = {"unselected": "·", "pruned": "░", "rejected": "▒", "accepted": "█"}
_PLAIN_SIGNS = {"unselected": ".", "pruned": ":", "rejected": "x", "accepted": "#"}


def print_report(report: RunReport, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print the report of one run.

    Args:
        report: Its numbers.
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """
    page = Page(stream, width)
    _head(page, report)
    if not report.summary["rows"]["total"]:
        return
    print_failures(page, report.summary)
    _print_check(page, report.check)
    page.blank()
    page.console.print(promises(report, page.console.width))
    page.blank()
    page.fact("goodput", "output tokens/s of rows that kept all they were promised, beside those of all rows")
    page.fact("baseline", report.baseline)
    page.blank()
    page.console.print(latency_table(report.summary, page.console.width))
    if report.drafts[ALL].draft.tokens:
        page.blank()
        page.console.print(drafts(report))
        _flow(page, report)
        page.blank()
        page.console.print(costs(report, page.console.width))
    if len(report.promises) > 2:
        page.blank()
        page.console.print(shares(report))
        fairness = report.summary["shares"]["fairness"]
        if fairness is not None:
            page.blank()
            page.fact("fairness", f"{fairness:.3f} (Jain's index of had / due, 1 is best)")
    if report.owners:
        page.blank()
        page.console.print(owners(report, page.console.width))
    page.blank()
    if len(report.promises) > 2 or report.owners:
        page.fact("computed", f"{COMPUTED}: what shares and quotas count")
    for name, text in [*_efficiency(report), *_controller(report), *_calibrated(report), *_machine(report)]:
        page.fact(name, text)


def _head(page: Page, report: RunReport) -> None:
    page.path("run", report.directory)
    page.fact("state", state(report))
    if report.started is not None:
        spent = report.summary["time"]
        device, engine = duration(spent["device_seconds"]), duration(spent["engine_seconds"])
        page.fact(
            "started", f"{moment(report.started)}, {device} of the device, {engine} of it in the engine"
        )
    model = report.summary["model"]
    quantization = model.get("quantization")
    named = f"{model.get('name') or 'unknown'}" + (f" ({quantization})" if quantization else "")
    page.fact("model", f"{named}, policy {report.policy or 'unknown'}")
    page.fact("rows", rows(report))
    for problem in report.problems:
        page.fact("note", problem)


def state(report: RunReport) -> str:
    """How the run stands."""
    tries = f"{report.attempts} attempt{'' if report.attempts == 1 else 's'}"
    if report.state in ("finished", "stopped"):
        code = "no exit code" if report.exit_code is None else f"exit code {report.exit_code}"
        return f"{report.state}, {code}, {tries}"
    return f"{report.state}, {tries}" if report.attempts else report.state


def rows(report: RunReport) -> str:
    """How many rows ended how, and of how many."""
    counts = report.summary["rows"]["by_status"]
    ended = [f"{count(counts[status.value])} {status.value}" for status in Status if counts.get(status.value)]
    there, whole = report.summary["rows"]["total"], report.rows_total
    of_all = f" of {count(whole)}" if whole is not None and whole != there else ""
    return f"{count(there)}{of_all}: {', '.join(ended) or 'none'}" + (
        f" (from {report.source})" if report.source else ""
    )


def moment(seconds: float) -> str:
    """A time in the reader's zone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"  # no calendar goes so far


def _flow(page: Page, report: RunReport) -> None:
    """A bar of where all drafted tokens went."""
    fates = report.drafts[ALL].fates
    blocks = (page.console.encoding or "").lower().startswith("utf")
    signs = _SIGNS if blocks else _PLAIN_SIGNS
    room = min(page.console.width, 100) - 12
    drawn, done, before = "", 0, 0
    total = sum(fates[fate].tokens for fate in FATES)
    for fate in FATES:
        done += fates[fate].tokens
        end = round(room * done / total)
        drawn, before = drawn + signs[fate] * (end - before), end
    page.fact("drafted", drawn)
    page.fact("", "  ".join(f"{signs[fate]} {fate}" for fate in FATES))


def _efficiency(report: RunReport) -> list[tuple[str, str]]:
    summary, energy = report.summary, report.summary["energy"]
    rates = summary["rates"]
    hour, good = rates["goodput_tokens_per_device_hour"], rates["goodput_tokens_per_s"]
    facts = []
    if hour is not None and summary["slo"]["rows_with_slo"]:
        facts.append(("per hour", f"{hour:,.0f} tokens of rows that kept their promises per device-hour"))
    if rates["output_tokens_per_s"] is not None:
        beside = (
            f"; goodput {significant(good)}" if good is not None and summary["slo"]["rows_with_slo"] else ""
        )
        facts.append(("throughput", f"{significant(rates['output_tokens_per_s'])} output tokens/s{beside}"))
    return [*facts, ("energy", energy_in_words(energy))]


def energy_in_words(energy: Mapping[str, object]) -> str:
    """What was measured and how, or why nothing was; never a guess."""
    joules = energy.get("joules")
    if not isinstance(joules, int | float):
        return f"not measured: {energy.get('reason') or 'no reason was recorded'}"
    told = [f"{significant(joules)} J ({energy.get('method')}: {energy.get('scope')})"]
    for name, words in (
        ("mean_watts", "W mean"),
        ("peak_watts", "W peak"),
        ("idle_joules", "J idle"),
        ("joules_per_output_token", "J per output token"),
        ("goodput_tokens_per_joule", "tokens per joule of rows that kept their promises"),
    ):
        value = energy.get(name)
        if isinstance(value, int | float):
            told.append(f"{significant(value)} {words}")
    return ", ".join(told)


def _controller(report: RunReport) -> list[tuple[str, str]]:
    """Fallbacks, decisions and their calibration."""
    facts, engine, choices = [], report.summary["engine"], report.choices
    steps = engine.get("fallback_steps")
    if isinstance(steps, int) and steps:
        why = str(engine.get("fallback") or "no reason recorded").removeprefix("plain decoding: ")
        facts.append(("fallbacks", f"{count(steps)} of {engine.get('steps'):,} steps decoded plainly: {why}"))
    if choices is None:
        return facts
    for event, reasons in choices.events.items():
        listed = ", ".join(
            f"{count(number)} {reason.replace('_', ' ')}" for reason, number in reasons.items()
        )
        facts.append(("decisions" if event == next(iter(choices.events)) else "", f"{event}: {listed}"))
    if choices.expected_tokens is not None and choices.calibration_error is not None:
        by_row = f"{significant(choices.row_error or 0.0)} tokens per step by row"
        came = f"{choices.expected_tokens:,.0f} tokens expected, {count(choices.tokens)} came"
        facts.append(("predicted", f"{came}: {choices.calibration_error:+.1%} in all, {by_row}"))
    return facts


def _calibrated(report: RunReport) -> list[tuple[str, str]]:
    """How good the probabilities were that drafts were chosen by."""
    found = report.calibration
    if found is None:
        return []
    error = (
        f"calibration error {found.error:.3f} ({found.error_reported:.3f} of the drafter's own probabilities)"
    )
    return [("calibration", f"{error} over {count(found.candidates)} candidates")]


def _machine(report: RunReport) -> list[tuple[str, str]]:
    memory, facts = report.memory, []
    preempted = report.summary["tokens"]["recomputed"]
    times = sum(report.preemptions.values())
    if times or preempted:
        often = f"{count(times)} time{'' if times == 1 else 's'}"
        facts.append(("preempted", f"{often}, {count(preempted)} tokens computed again"))
    if report.lost_tokens:
        facts.append(("lost", f"{count(report.lost_tokens)} tokens of attempts that ended early"))
    told = [
        f"{size(value)} {name}"
        for name, value in (("peak", memory.peak_resident), ("keys and values", memory.kv_peak))
        if value
    ]
    if memory.kv_total and memory.kv_peak is not None:
        told[-1] += f" of {size(memory.kv_total)}"
    if memory.tree_peak:
        told.append(f"{size(memory.tree_peak)} draft trees")
    if memory.fragmentation is not None:
        told.append(f"{memory.fragmentation:.0%} of the rows' pages empty at their end")
    return [*facts, ("memory", ", ".join(told))] if told else facts


def _print_check(page: Page, check: Check) -> None:
    """What of the summary is confirmed by the tables."""
    if check.note:
        page.fact("checked", check.note)
    if not check.compared:
        return
    if not check.differences:
        page.fact("checked", f"all {count(check.compared)} values in summary.json follow from the tables")
        return
    page.fact(
        "differs", f"{count(len(check.differences))} values in summary.json are not those of the tables:"
    )
    for each in check.differences[:MANY]:
        page.item(f"{each.field}: {each.recorded} recorded, {each.recomputed} computed")
    if len(check.differences) > MANY:
        page.item(f"and {count(len(check.differences) - MANY)} more (--json lists all)")
