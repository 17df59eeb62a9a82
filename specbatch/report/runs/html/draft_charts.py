"""Drawings of where drafted tokens, seconds and joules went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specbatch.report.runs.fates import FATES
from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.html.charts import Bar, Frame, bars
from specbatch.report.runs.html.elements import paragraph, table
from specbatch.report.runs.promises import ALL
from specbatch.report.runs.tables import large, number, percent, tier_names
from specbatch.report.words import count, significant

Drawn = list[tuple[str, str]]

_SPLIT = ("writing and reading", "drafting", "rejected branches", "nobody's")


def draft_charts(report: RunReport) -> Drawn:
    """The fate of every drafted token, by tier, and what the written tokens were made of."""
    rows, made = [], []
    for name in tier_names(report):
        found = report.drafts[name]
        total = found.draft.tokens
        if total:
            parts = [found.fates[fate].tokens / total for fate in FATES]
            rows.append(Bar(name, parts, f"{count(total)} drafted"))
        accepted = found.fates["accepted"].tokens
        sources = [accepted - found.trimmed, found.verifications, found.first_tokens]
        if found.written:
            parts = [source / found.written for source in sources]
            made.append(Bar(name, parts, f"{count(found.written)} written"))
    return [
        (
            bars(Frame("fates", "Where drafted tokens went", _shares(rows, FATES), "of 1"), FATES, rows, 1.0),
            "Every drafted token has one fate. Pruned: chosen, and dropped before the model computed it.",
        ),
        (
            bars(
                Frame("made", "What written tokens came of", _shares(made, _SOURCES), "of 1"),
                _SOURCES,
                made,
                1.0,
            ),
            "A verification adds one token to those it accepts; each text begins with one token of its own.",
        ),
    ]


_SOURCES = ("accepted drafts", "verifications", "first tokens")


def _shares(rows: Sequence[Bar], names: Sequence[str]) -> str:
    return "; ".join(
        f"{row.label}: "
        + ", ".join(f"{part:.0%} {name}" for part, name in zip(row.parts, names, strict=True))
        for row in rows
    )


def fate_table(report: RunReport, names: Sequence[str]) -> str:
    """What each fate cost, in all units."""
    found = report.drafts[ALL]
    lines = []
    fates = [
        *((name, found.fates[name]) for name in names),
        ("drafting alone", found.draft),
        ("not accepted", found.wasted),
    ]
    for name, fate in fates:
        lines.append(
            [
                *(
                    name,
                    count(fate.tokens),
                    percent(fate.of_tokens),
                    large(fate.flops),
                    percent(fate.of_flops),
                ),
                *(
                    number(fate.device_s),
                    percent(fate.of_device_s),
                    number(fate.joules),
                    percent(fate.of_joules),
                ),
            ]
        )
    headings = ("", "tokens", "of drafted", "FLOPs", "of all", "device s", "of all", "joules", "of all")
    return table("What drafts cost", headings, lines)


def energy_charts(report: RunReport) -> Drawn:
    """Joules where they were measured, and in any case what they go with: seconds of the engine."""
    time, energy = report.summary["time"], report.summary["energy"]
    drawn = []
    joules = _split(energy, "attributed_joules", "draft_joules", "rejected_joules", "idle_joules")
    if joules is not None:
        told = f"{number(sum(joules))} J in all"
        rows = [Bar("joules", joules, told)]
        frame = Frame("joules", "Where the energy went", _amounts(joules, "J"), "J")
        drawn.append((bars(frame, _SPLIT, rows), f"{energy.get('method')}: {energy.get('scope')}."))
    proxies = energy["proxies"]
    seconds = [
        proxies["attributed_seconds"] - proxies["draft_seconds"] - proxies["rejected_seconds"],
        proxies["draft_seconds"],
        proxies["rejected_seconds"],
        max(0.0, time.get("idle_seconds", 0.0)),
    ]
    if proxies["attributed_seconds"] and sum(seconds):
        rows = [Bar("engine seconds", seconds, f"{number(sum(seconds))} s in all")]
        frame = Frame("seconds", "Where the engine's seconds went", _amounts(seconds, "s"), "s")
        caption = "Shared among rows by their tokens in each step; nobody's: waiting, writing, lost work."
        drawn.append((bars(frame, _SPLIT, rows), caption))
    return drawn


def _split(energy: Mapping[str, object], *names: str) -> list[float] | None:
    """Useful, drafting, rejected, nobody's; ``None`` where a part is not known."""
    values = [energy.get(name) for name in names]
    known = [float(value) for value in values if isinstance(value, int | float)]
    if len(known) < len(names):
        return None
    whole, draft, rejected, idle = known
    return [whole - draft - rejected, draft, rejected, max(0.0, idle)]


def _amounts(parts: Sequence[float], unit: str) -> str:
    return ", ".join(f"{name}: {significant(part)} {unit}" for name, part in zip(_SPLIT, parts, strict=True))


def energy_table(report: RunReport) -> str:
    """What was measured, what is null, and the proxies."""
    energy: Mapping[str, object] = report.summary["energy"]
    known = {name: value for name, value in energy.items() if name != "proxies" and value is not None}
    lines = [[name.replace("_", " "), _shown(value)] for name, value in known.items()]
    proxies = report.summary["energy"]["proxies"]
    lines += [[f"proxy: {name.replace('_', ' ')}", _shown(value)] for name, value in proxies.items()]
    absent = [name.replace("_", " ") for name, value in energy.items() if value is None]
    told = paragraph(f"Null, because nothing was measured: {', '.join(absent)}.", "dim") if absent else ""
    return table("Energy, and what stands in for it", ("what", "value"), lines, words=2) + told


def _shown(value: object) -> str:
    if isinstance(value, int | float):
        return large(value)
    return "null" if value is None else str(value)
