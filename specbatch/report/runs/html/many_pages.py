"""Pages of several runs: two side by side, or many as nights."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.report.runs.compare import FEW, TOO_FEW, Change, Comparison, TierChange
from specbatch.report.runs.html.charts import Frame, curves, intervals
from specbatch.report.runs.html.elements import document, figures, notes, paragraph, section, table
from specbatch.report.runs.show import moment
from specbatch.report.runs.show_many import beyond_noise
from specbatch.report.runs.tables import NONE, number, percent
from specbatch.report.runs.trend import Night
from specbatch.report.words import count, significant


def comparison_page(comparison: Comparison) -> str:
    """The page of two runs; the first is the baseline."""
    first, second = comparison.directories
    warning = []
    if not comparison.comparable:
        different = ", ".join(each.what for each in comparison.unlike if each.matters)
        warning = [f"Not the same job ({different}): differences are not what a policy or a machine changes."]
    beyond = [[name, text] for name, text in beyond_noise(comparison)]
    unlike = [[each.what, each.first, each.second] for each in comparison.unlike]
    return document(
        f"{first} and {second}: specbatch report",
        "<h1>Two runs</h1>",
        paragraph(f"Baseline A: {first}. Compared with it, B: {second}."),
        notes(
            "Take care",
            [*warning, *(f"Tier {name} is in one of the two only." for name in comparison.only_in)],
        ),
        section("More than chance", table("Beyond noise, B against A", ("", "what"), beyond, words=2)),
        section(
            "What is not the same", table("Settings", ("what", "A", "B"), unlike, words=3) if unlike else ""
        ),
        *(_tier(name, tier) for name, tier in comparison.tiers.items()),
        section("Method", paragraph(f"{comparison.method}.", "dim")),
    )


def _tier(name: str, tier: TierChange) -> str:
    relative = [found for found in map(_relative, tier.changes) if found is not None]
    told = "; ".join(
        f"{label}: {shift:+.0%} ({low:+.0%} to {high:+.0%})" for label, shift, low, high in relative
    )
    frame = Frame(f"change-{name}", f"{name}: B against A", told, "difference, of A")
    paired = "the same rows of both" if tier.paired else "other rows in each"
    few = f" With {min(tier.rows)} rows the interval says little." if min(tier.rows) < FEW else ""
    caption = f"Dots: difference; lines: 95 % interval, drawn over {paired}. Grey: within noise.{few}"
    if any(change.too_few for change in tier.changes):
        caption += f" What less than {TOO_FEW} rows have a part in is not drawn: too few to tell."
    lines = [[change.name, *_cells(change)] for change in tier.changes]
    headings = ("", "A", "B", "B - A", "95 % interval", "noise")
    rows = f"{count(tier.rows[0])} and {count(tier.rows[1])} rows"
    return section(
        f"Tier {name}" if name != "all" else "All rows",
        figures([(intervals(frame, relative), caption)] if relative else []),
        table(rows, headings, lines),
    )


def _relative(change: Change) -> tuple[str, float, float, float] | None:
    """Name, difference and its interval as shares of the baseline."""
    if (
        change.too_few
        or not change.first
        or change.difference is None
        or change.low is None
        or change.high is None
    ):
        return None
    size = abs(change.first)
    return change.name, change.difference / size, change.low / size, change.high / size


def _cells(change: Change) -> list[str]:
    noise = "too few" if change.too_few else {None: NONE, True: "within", False: "no"}[change.within_noise]
    interval = NONE
    if change.low is not None and change.high is not None:
        interval = f"{number(change.low)} to {number(change.high)}"
    return [number(change.first), number(change.second), number(change.difference), interval, noise]


def trend_page(found: Sequence[Night]) -> str:
    """The page of many runs."""
    told = [f"{night.directory}: {each}" for night in found for each in (*_changes(night), *night.problems)]
    return document(
        "Nights: specbatch report",
        f"<h1>{len(found)} nights</h1>",
        notes("What is missing, damaged or new", told),
        section("Trend", figures(_charts(found))),
        section("Night by night", _table(found)),
    )


def _changes(night: Night) -> list[str]:
    differ = f"{count(night.differences)} values in summary.json are not those of the tables"
    changed = [f"other {what} than the night before" for what in night.changed]
    return [*changed, differ] if night.differences else changed


def _charts(found: Sequence[Night]) -> list[tuple[str, str]]:
    """A drawing for each number that any night has."""
    tiers = sorted({tier for night in found for tier in night.attainment_by_tier})
    kept = {"all": [night.attainment for night in found]}
    kept |= {tier: [night.attainment_by_tier.get(tier) for night in found] for tier in tiers}
    speed = {
        "goodput": [night.goodput_tokens_per_s for night in found],
        "all rows": [night.tokens_per_s for night in found],
    }
    late = {"p95": [night.e2e_p95_s for night in found]}
    in_vain = {"not accepted": [night.not_accepted for night in found]}
    failed = {"failed": [float(night.failed) for night in found]}
    joules = {"joules": [night.joules for night in found]}
    drawn = (
        _chart(found, "Promises kept", kept, "Of rows with promises, those that kept all.", percent=True),
        _chart(found, "Tokens/s", speed, "Goodput: rows that kept all their promises, beside all rows."),
        _chart(found, "Arrival to last token, p95, s", late, "95 % of the rows took at most so long."),
        _chart(found, "Drafts in vain, of all FLOPs", in_vain, "What was not accepted.", percent=True),
        _chart(found, "Rows that failed", failed, "Rejected, error, expired or cancelled."),
        _chart(found, "Energy, J", joules, "As each run measured it."),
    )
    return [chart for chart in drawn if chart is not None]


def _chart(
    found: Sequence[Night],
    title: str,
    series: dict[str, list[float | None]] | dict[str, list[float]],
    caption: str,
    *,
    percent: bool = False,
) -> tuple[str, str] | None:
    """A drawing with its caption; ``None`` where no night has a value."""
    there = {name: values for name, values in series.items() if any(each is not None for each in values)}
    if not there:
        return None
    told = "; ".join(f"{name}: {_course(values)}" for name, values in there.items())
    frame = Frame("".join(letter for letter in title if letter.isalpha()), title, told)
    tips = [f"{night.name}, {_when(night)}" for night in found]
    return curves(frame, [_when(night) for night in found], there, tips, percent=percent), caption


def _course(values: Sequence[float | None]) -> str:
    return ", ".join(NONE if value is None else significant(value) for value in values)


def _table(found: Sequence[Night]) -> str:
    tiers = sorted({tier for night in found for tier in night.attainment_by_tier})
    headings = (
        *("started", "directory", "rows", "failed", "SLO met", *tiers, "goodput", "all tokens/s"),
        *("per device-hour", "p95 total s", "in vain", "J", "W mean", "exit"),
    )
    return table("Nights", headings, [_line(night, tiers) for night in found], words=2)


def _line(night: Night, tiers: Sequence[str]) -> list[str]:
    hour = night.goodput_tokens_per_device_hour
    return [
        *(_when(night), night.directory, count(night.rows), count(night.failed), percent(night.attainment)),
        *(percent(night.attainment_by_tier.get(tier)) for tier in tiers),
        *(number(night.goodput_tokens_per_s), number(night.tokens_per_s)),
        *(NONE if hour is None else f"{hour:,.0f}", number(night.e2e_p95_s), percent(night.not_accepted)),
        *(number(night.joules), number(night.mean_watts)),
        str(night.exit_code) if night.state in ("finished", "stopped") else night.state,
    ]


def _when(night: Night) -> str:
    if night.started is None:
        return "unknown"
    return moment(night.started)[:16]
