"""What has to hold when there is more to do than time; see :mod:`benchmarks.overload`.

Each rule looks at what a user has after a run: results, decisions, summary and report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks.evidence import FOR_OWNERS, STEPS, Evidence, Finding, Line

DEFAULT_TIER = "standard"
BELOW_SILVER = "bronze"
MIN_PROGRESS = 8
ALLOWED = 0.05
"""Share of the others' promises that rows without hope may cost before the rule is broken."""

_GIVEN_UP = ("late", "degrade", "reject")


def every_row_once(run: Evidence) -> Finding:
    """As many lines as rows, in their order."""
    found = [(row["row_index"], row["id"]) for row in run.results]
    wanted = [(number, row["id"]) for number, row in enumerate(run.asked)]
    broken = [f"row {each} is there {n} times" for each, n in Counter(found).items() if n > 1]
    broken += [f"row {each} is missing" for each in wanted if each not in found]
    broken += [f"row {each} was not asked for" for each in found if each not in wanted]
    if not broken and found != wanted:
        broken = ["rows are not in input order"]
    return Finding("every row once", f"{len(found)} lines for {len(wanted)} rows", tuple(broken))


def same_texts(run: Evidence) -> Finding:
    """Who is answered is answered as ever."""
    answered = [row for row in run.results if _answered(row)]
    broken = [f"{row['id']} has another text" for row in answered if row["text"] != run.reference[row["id"]]]
    return Finding("texts as without promises", f"{len(answered)} compared", tuple(broken))


def rejected_or_kept(run: Evidence, tier: str = "vip") -> Finding:
    """``reject``: a row that misses is rejected, unless it missed in the step in which it ended."""

    def treated(asked: Line, row: Line) -> str | None:
        if (row["status"], row["error_code"]) == ("rejected", "overloaded") and row["miss_reason"]:
            return "rejected"
        return "missed in their last step" if _ended_at_once(run, asked, row) else None

    return _kept_or_treated(run, tier, "kept or rejected", treated)


def late_and_answered(run: Evidence, tier: str = "gold") -> Finding:
    """``late``: a row that misses is answered, and says why it missed."""

    def treated(_: Line, row: Line) -> str | None:
        return row["miss_reason"] if _answered(row) and row["text"] is not None else None

    return _kept_or_treated(run, tier, "kept, or late with a reason", treated)


def degraded(run: Evidence, tier: str = "silver") -> Finding:
    """``degrade``: a row that misses ran under the next tier, unless it missed in its last step."""

    def treated(asked: Line, row: Line) -> str | None:
        if not _answered(row):
            return None
        if (row["served_tier"], row["tier_reason"]) == (BELOW_SILVER, "degraded") and row["miss_reason"]:
            return "degraded"
        return "missed in their last step" if _ended_at_once(run, asked, row) else None

    return _kept_or_treated(run, tier, "kept or degraded", treated)


def loose_rows_advance(run: Evidence, tier: str = "loose") -> Finding:
    """``min_progress``: between its first and last step a row never stands still for so many."""
    broken, longest, begun = [], 0, 0
    for _, row in run.rows(tier):
        steps = sorted(each["step"] for each in run.steps_of([row["row_index"]]))
        gap = max((after - before for before, after in pairwise(steps)), default=0)
        begun, longest = begun + bool(steps), max(longest, gap)
        if gap > MIN_PROGRESS:
            broken.append(f"{row['id']} advanced once in {gap} steps")
    numbers = f"{begun} rows, once in {longest} steps at least"
    return Finding(f"{tier}: advance once in {MIN_PROGRESS} steps", numbers, tuple(broken))


def shares_are_had(run: Evidence) -> Finding:
    """``share``: a tier has the tokens that were due to it, but for those of one step."""
    shares, steps = run.summary["shares"], Counter[int]()
    for each in run.decisions:
        if each["event"] in STEPS:
            steps[each["step"]] += _computed(each)
    step = max(steps.values(), default=0)
    pairs = {t: (shares["achieved_tokens"].get(t, 0), due) for t, due in shares["entitled_tokens"].items()}
    broken = [f"{t} had {had:.0f} of {due:.0f}" for t, (had, due) in pairs.items() if had < due - step]
    numbers = ", ".join(f"{t} had {had:.0f} tokens of {due:.0f} due" for t, (had, due) in pairs.items())
    return Finding("shares are had", numbers or "nobody has one", tuple(broken))


def owners_stay_in_their_tiers(run: Evidence) -> Finding:
    """Rows without permission, and those over the quota, run under the default tier, and say so."""
    broken, counts = [], Counter[str]()
    for asked, row in run.rows():
        owner, reason = asked["owner"], row["tier_reason"]
        allowed = run.allowed.get(owner)
        barred = allowed is not None and asked["tier"] not in (*allowed, DEFAULT_TIER)
        if reason in FOR_OWNERS:
            counts[f"{reason.replace('_', ' ')} ({owner})"] += 1
        if barred is not (reason == "not_allowed"):
            broken.append(f"{row['id']} of {owner} in {asked['tier']}: {reason}")
        elif reason == "over_quota" and owner not in run.quotas:
            broken.append(f"{row['id']} of {owner} is over a quota that there is not")
        elif reason in FOR_OWNERS and row["served_tier"] != DEFAULT_TIER:
            broken.append(f"{row['id']} ({reason}) ran under {row['served_tier']}")
    return Finding("owners stay in their tiers", _listed(counts), tuple(broken))


def quotas_hold(run: Evidence) -> Finding:
    """Outside the default tier owners compute their quota and the rest of a step, and over is over."""
    broken, numbers = [], []
    for owner, quota in run.quotas.items():
        rows = {row["row_index"]: row for asked, row in run.rows() if asked["owner"] == owner}
        lines = [each for each in run.steps_of(rows) if each["tier"] != DEFAULT_TIER]
        steps = Counter[int]()
        for each in lines:
            steps[each["step"]] += _computed(each)
        pruned = sum(row["pruned"] or 0 for row in rows.values())
        used, step = sum(steps.values()), max(steps.values(), default=0)
        numbers.append(f"{owner} {used} of {quota}, {step} in a step at most")
        if used - pruned > quota + step:
            broken.append(f"{owner} computed {used} tokens in other tiers, with a quota of {quota}")
        over = [
            each["time_s"]
            for each in run.decisions
            if each["row_index"] in rows and (each["event"], each["reason"]) == ("demoted", "over_quota")
        ]
        after = {each["row_index"] for each in lines if over and each["time_s"] > min(over)}
        broken += [f"{rows[i]['id']} ran on under its own tier over the quota" for i in sorted(after)]
    return Finding("quotas hold", "; ".join(numbers), tuple(broken))


def earliest_deadline_first(run: Evidence) -> Finding:
    """Nobody misses while one of its tier with more time was let in before it, unless it was lost by then.

    A row is lost when it has been given up, or when its time is over.
    """
    lost = {row["row_index"]: asked["deadline_s"] for asked, row in run.rows()}
    for each in run.decisions:
        if each["event"] in _GIVEN_UP and lost[each["row_index"]] is not None:
            lost[each["row_index"]] = min(each["time_s"], lost[each["row_index"]])
    tiers: dict[str, list[tuple[Line, Line]]] = defaultdict(list)
    for asked, row in run.rows():
        if asked["deadline_s"] is not None and row["tier_reason"] not in FOR_OWNERS:
            tiers[asked["tier"]].append((asked, row))
    broken, pairs = [], 0
    for rows in tiers.values():
        for asked, row in rows:
            if row["miss_reason"] not in ("waited", "overload"):
                continue
            before = [pair for pair in rows if _came_before(pair, (asked, row))]
            wrong = [first["id"] for _, first in before if first["queued_s"] < lost[row["row_index"]]]
            pairs += len(before)
            if wrong:
                broken.append(f"{row['id']} missed ({row['miss_reason']}) behind {', '.join(wrong)}")
    numbers = f"{pairs} times one with more time began first, {len(broken)} rows were not lost by then"
    return Finding("earliest deadline first", numbers, tuple(broken))


def misses_are_told(run: Evidence) -> Finding:
    """Summary and report count as the rows do."""
    told = run.summary["tiers"], run.report["promises"]
    broken = [f"{row['id']} missed without a reason" for row in run.results if _unexplained(row)]
    for tier in sorted({row["tier"] for row in run.results}):
        rows = [row for row in run.results if row["tier"] == tier]
        broken += [f"summary, {tier}: {each}" for each in _differences(rows, *_of_summary(told[0][tier]))]
        broken += [f"report, {tier}: {each}" for each in _differences(rows, *_of_report(told[1][tier]))]
    broken += [f"summary: {each}" for each in _differences(run.results, *_of_summary(run.summary))]
    broken += [f"report: {each}" for each in _differences(run.results, *_of_report(told[1]["all"]))]
    broken += [f"the report finds a difference: {each}" for each in run.report["check"]["differences"]]
    return Finding("misses are told", _listed(_count(run.results, "miss_reason")), tuple(broken))


RULES: tuple[Callable[[Evidence], Finding], ...] = (
    every_row_once,
    same_texts,
    rejected_or_kept,
    late_and_answered,
    degraded,
    loose_rows_advance,
    shares_are_had,
    owners_stay_in_their_tiers,
    quotas_hold,
    earliest_deadline_first,
    misses_are_told,
)


def hopeless_rows_cost_nothing(without: float, beside: float, hopeless: Sequence[Line]) -> Finding:
    """Shares of the same rows' promises, without and beside rows that cannot be saved."""
    numbers = f"{without:.0%} of the others' promises without, {beside:.0%} beside {len(hopeless)} of them"
    broken = [f"{row['id']} kept what could not be kept" for row in hopeless if row["slo_met"]]
    if without - beside > ALLOWED + 1e-9:
        broken.append(f"{100 * (without - beside):.0f} points lost")
    return Finding(f"hopeless rows cost {100 * ALLOWED:.0f} points at most", numbers, tuple(broken))


def _kept_or_treated(
    run: Evidence, tier: str, rule: str, treated: Callable[[Line, Line], str | None]
) -> Finding:
    """A rule for rows that miss: ``treated`` names how one was treated, None where that breaks the rule."""
    broken, counts = [], Counter[str]()
    for asked, row in run.rows(tier):
        how = "kept" if row["slo_met"] else treated(asked, row)
        if how:
            counts[how] += 1
        else:
            under = row["served_tier"] or tier
            broken.append(f"{row['id']} missed ({row['miss_reason']}), and is {row['status']} under {under}")
    return Finding(f"{tier}: {rule}", _listed(counts), tuple(broken))


def _answered(row: Line) -> bool:
    return row["status"] in ("ok", "truncated")


def _ended_at_once(run: Evidence, asked: Line, row: Line) -> bool:
    """Whether a row ended in the step in which its time passed: before each step it is looked at."""
    if row["e2e_s"] is None or not row["miss_reason"]:
        return False
    lines = [each for each in run.decisions if each["event"] in STEPS]
    steps = {each["step"] for each in lines if asked["deadline_s"] < each["time_s"] <= row["e2e_s"]}
    return len(steps) <= 1


def _came_before(one: tuple[Line, Line], other: tuple[Line, Line]) -> bool:
    """Whether a row with more time was let in before another one."""
    (asked, row), (wanted, late) = one, other
    if row["queued_s"] is None or asked["deadline_s"] <= wanted["deadline_s"]:
        return False
    return late["queued_s"] is None or bool(row["queued_s"] < late["queued_s"])


def _computed(line: Line) -> int:
    """Tokens that the model was asked for in a step of a row."""
    return 1 + int(line["slo_nodes"] or 0) + int(line["extra_nodes"] or 0)


def _unexplained(row: Line) -> bool:
    return (row["slo_met"] is False) is not (row["miss_reason"] is not None)


def _count(rows: Iterable[Line], name: str) -> Counter[str]:
    return Counter(row[name] for row in rows if row[name] is not None)


def _of_summary(told: Line) -> tuple[Line, Line, tuple[int, int]]:
    slo = told["slo"]
    return told["promises"]["missed"], told["promises"]["moved"], (slo["rows_with_slo"], slo["rows_attained"])


def _of_report(told: Line) -> tuple[Line, Line, tuple[int, int]]:
    return told["missed_by_reason"], told["moved_by_reason"], (told["with_slo"], told["attained"])


def _differences(rows: Sequence[Line], missed: Line, moved: Line, kept: tuple[int, int]) -> Iterator[str]:
    met = [row["slo_met"] for row in rows if row["slo_met"] is not None]
    for name, told in (("miss_reason", missed), ("tier_reason", moved)):
        if dict(told) != dict(_count(rows, name)):
            yield f"{name} {dict(told)}, by the rows {dict(_count(rows, name))}"
    if kept != (len(met), sum(met)):
        yield f"(with promises, kept) {kept}, by the rows {(len(met), sum(met))}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nobody"
