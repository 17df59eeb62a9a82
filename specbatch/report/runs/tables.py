"""Tables of one run's report, for a terminal of 80 columns or more."""

from __future__ import annotations

from rich.table import Table

from specbatch.report.runs.fates import FATES, NOTHING, Fate
from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.promises import ALL, Kept
from specbatch.report.words import count, significant

WIDE = 100
NONE = "-"
COMPUTED = "drafted tokens that the model verified, and one more for each verification"
"""Computed tokens: what budgets and quotas count. In the results, ``verified`` means drafted tokens only."""


def grid(title: str, first: str, *headings: str) -> Table:
    """A table whose first column may be broken; the others are numbers."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def number(value: float | None) -> str:
    """Three digits, or a dash for what is not known."""
    return NONE if value is None else significant(value)


def percent(value: float | None) -> str:
    """Per cent, with a digit where there would be none else."""
    if value is None:
        return NONE
    return f"{value:.1%}" if 0 < abs(value) < 0.0995 else f"{value:.0%}"


def large(value: float | None) -> str:
    """With a prefix: ``1.23e12`` → ``1.23T``."""
    if value is None:
        return NONE
    for power, sign in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{significant(value / power)}{sign}"
    return significant(value)


def tier_names(report: RunReport) -> list[str]:
    """Tiers, and ``all`` where there are several."""
    names = [name for name in report.promises if name != ALL]
    return names if len(names) == 1 else [*names, ALL]


def promises(report: RunReport, width: int) -> Table:
    """What was promised and kept."""
    table = Table(box=None, pad_edge=False, title="Promises", title_justify="left", title_style="bold")
    table.add_column("tier", overflow="fold")
    table.add_column("promised (SLO)", overflow="fold", ratio=1 if width < WIDE else None)
    for heading in ("rows\nwith SLO", "kept", "violated", "goodput\ntokens/s", "all\ntokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in tier_names(report):
        table.add_row(*_promise_cells(name, report.promises[name]))
    return table


def _promise_cells(name: str, kept: Kept) -> list[str]:
    promised = kept.with_slo > 0
    reasons = ", ".join(
        f"{count(rows)} {why.replace('_', ' ')}" for why, rows in kept.missed_by_reason.items()
    )
    definition = kept.definition if name != ALL else "all of the above"
    return [
        name,
        definition + (f"; missed: {reasons}" if reasons and name != ALL else ""),
        count(kept.with_slo),
        percent(kept.attainment),
        percent(kept.violation_ratio),
        number(kept.goodput_tokens_per_s) if promised else NONE,
        number(kept.tokens_per_s),
    ]


def drafts(report: RunReport) -> Table:
    """Where drafted tokens went, by tier."""
    table = grid("Drafted tokens", "tier", "drafted", *FATES, "trimmed", "per pass")
    for name in tier_names(report):
        found = report.drafts[name]
        accepted = found.fates["accepted"].tokens
        per_pass = 1 + accepted / found.verifications if found.verifications else None
        went = [count(found.fates[fate].tokens) for fate in FATES]
        table.add_row(name, count(found.draft.tokens), *went, count(found.trimmed), number(per_pass))
    return table


def costs(report: RunReport, width: int) -> Table:
    """What drafting and rejected branches cost: tokens, FLOPs, seconds, joules, and shares of all."""
    found = report.drafts[ALL]
    wide = width >= WIDE
    shares = ("of all",) if wide else ()
    table = grid(
        "What drafts cost",
        "",
        *("tokens", "of drafted", "FLOPs", "of all"),
        *("device s", *shares),
        *("joules", "of all"),
    )
    lines: list[tuple[str, Fate]] = [(name, found.fates[name]) for name in FATES]
    if found.fates[NOTHING].flops or found.fates[NOTHING].device_s:
        lines.append((NOTHING, found.fates[NOTHING]))
    lines += [("drafting alone", found.draft), ("not accepted", found.wasted)]
    for name, fate in lines:
        table.add_row(
            name,
            *(count(fate.tokens), percent(fate.of_tokens), large(fate.flops), percent(fate.of_flops)),
            *(number(fate.device_s), *([percent(fate.of_device_s)] if wide else [])),
            *(number(fate.joules), percent(fate.of_joules)),
        )
    return table


def shares(report: RunReport) -> Table:
    """Computed tokens by tier, and what was due to tiers with a guaranteed share."""
    due = report.summary["shares"]
    table = grid("Share of the verification budget", "tier", "computed", "of all", "due", "had", "had / due")
    total = report.promises[ALL].verified_tokens
    for name in tier_names(report):
        mine = report.promises[name].verified_tokens
        owed, had = due["entitled_tokens"].get(name), due["achieved_tokens"].get(name, 0.0)
        ratio = number(had / owed) if owed else NONE
        table.add_row(
            *(name, count(mine), percent(mine / total if total else None)),
            *((NONE, NONE, NONE) if owed is None else (f"{owed:,.0f}", f"{had:,.0f}", ratio)),
        )
    return table


def owners(report: RunReport, width: int) -> Table:
    """Use by owner and tier, against quotas."""
    wide = ("joules",) if width >= WIDE else ()
    table = grid(
        *("Use by owner", "owner", "tier", "rows", "output", "computed", "device s", *wide, "quota", "used")
    )
    table.columns[1].justify = "left"
    for account in report.owners:
        uses = [*account.tiers.items(), *([("all", account.whole)] if len(account.tiers) > 1 else [])]
        for place, (tier, use) in enumerate(uses):
            last = place == len(uses) - 1
            limit = NONE if account.quota is None else count(account.quota)
            table.add_row(
                (account.owner or "(no owner)") if place == 0 else "",
                *(tier, count(use.rows), count(use.output_tokens), count(use.verified_tokens)),
                *(number(use.device_s), *([number(use.joules)] if wide else [])),
                *((limit, percent(account.of_quota)) if last else ("", "")),
            )
    return table
