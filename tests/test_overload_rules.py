"""The rules of the overload benchmark find what they are meant to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import overload, rules
from benchmarks.evidence import Evidence, Finding, attainment

LATE = {"slo_met": False, "miss_reason": "overload"}
REJECTED = {**LATE, "status": "rejected", "error_code": "overloaded", "text": None, "e2e_s": None}


def evidence(*rows: tuple[str, Mapping[str, Any]], deadline_s: float | None = 5.0) -> Evidence:
    """Rows of tiers; each was kept, but for what is said of it."""
    asked: list[dict[str, Any]] = []
    results = []
    for number, (tier, told) in enumerate(rows):
        asked.append({"id": f"row{number}", "tier": tier, "owner": None, "deadline_s": deadline_s})
        kept = {"row_index": number, "id": f"row{number}", "tier": tier, "status": "ok", "error_code": None}
        kept |= {"text": "yes", "slo_met": True, "miss_reason": None, "served_tier": None}
        kept |= {"tier_reason": None, "queued_s": 1.0 + number, "e2e_s": 3.0, "pruned": 0}
        results.append({**kept, **told})
    return Evidence(asked, results, reference={row["id"]: "yes" for row in asked})


def step(row: int, number: int, **told: object) -> dict[str, Any]:
    line = {"row_index": row, "event": "step", "reason": "plain", "step": number, "time_s": 0.1 * number}
    return {**line, "tier": "gold", "slo_nodes": 0, "extra_nodes": 0, **told}


def owned(run: Evidence, owner: str, **limits: Any) -> Evidence:
    return replace(run, asked=[{**row, "owner": owner} for row in run.asked], **limits)


def test_a_row_that_is_missing_or_there_twice_is_found() -> None:
    run = evidence(("gold", {}), ("gold", {}))
    assert rules.every_row_once(run).broken == ()
    assert "missing" in rules.every_row_once(replace(run, results=run.results[:1])).broken[0]
    assert "2 times" in rules.every_row_once(replace(run, results=[*run.results, run.results[0]])).broken[0]
    assert "order" in rules.every_row_once(replace(run, results=run.results[::-1])).broken[0]


def test_another_text_is_found() -> None:
    run = evidence(("gold", {}), ("vip", REJECTED))
    assert rules.same_texts(run) == Finding("texts as without promises", "1 compared")
    assert rules.same_texts(evidence(("gold", {"text": "no"}))).broken == ("row0 has another text",)


@pytest.mark.parametrize(
    ("rule", "tier", "good", "bad"),
    [
        (rules.rejected_or_kept, "vip", REJECTED, {**REJECTED, "error_code": "deadline_passed"}),
        (rules.rejected_or_kept, "vip", {**REJECTED, "e2e_s": 6.0}, {**REJECTED, "miss_reason": None}),
        (rules.late_and_answered, "gold", LATE, {**LATE, "miss_reason": None}),
        (rules.late_and_answered, "gold", LATE, REJECTED),
        (
            rules.degraded,
            "silver",
            {**LATE, "served_tier": "bronze", "tier_reason": "degraded"},
            {**LATE, "served_tier": "standard", "tier_reason": "degraded", "e2e_s": None},
        ),
    ],
)
def test_a_miss_that_was_not_treated_as_its_tier_says_is_found(
    rule: Callable[[Evidence], Finding], tier: str, good: Mapping[str, Any], bad: Mapping[str, Any]
) -> None:
    assert rule(evidence((tier, {}), (tier, good))).broken == ()
    assert len(rule(evidence((tier, {}), (tier, bad))).broken) == 1


@pytest.mark.parametrize(("rule", "tier"), [(rules.rejected_or_kept, "vip"), (rules.degraded, "silver")])
def test_only_a_row_that_ends_in_the_step_in_which_its_time_passes_escapes_the_rule(
    rule: Callable[[Evidence], Finding], tier: str
) -> None:
    run = evidence((tier, {**LATE, "miss_reason": "slow", "e2e_s": 5.2}))
    assert rule(replace(run, decisions=[step(0, 49), step(0, 51)])).broken == ()
    assert rule(replace(run, decisions=[step(0, 51), step(9, 52)])).broken != ()


def test_a_loose_row_that_stands_still_is_found() -> None:
    run = evidence(("loose", {"slo_met": None}))
    lines = [step(0, 3), step(0, 11), step(0, 19, event="change"), step(0, 40, event="row")]
    assert rules.loose_rows_advance(replace(run, decisions=lines)).broken == ()
    lines = [step(0, 3), step(0, 12), step(0, 13)]
    found = rules.loose_rows_advance(replace(run, decisions=lines)).broken
    assert found == ("row0 advanced once in 9 steps",)


@pytest.mark.parametrize(("had", "broken"), [(97, False), (96, True)])
def test_a_share_that_is_short_by_more_than_a_step_is_found(had: int, broken: bool) -> None:
    shares = {"entitled_tokens": {"loose": 100.0}, "achieved_tokens": {"loose": had}}
    lines = [step(0, 1), step(1, 1, extra_nodes=1), step(0, 2)]
    run = replace(evidence(("loose", {})), decisions=lines, summary={"shares": shares})
    assert bool(rules.shares_are_had(run).broken) is broken


@pytest.mark.parametrize(
    ("told", "broken"),
    [
        ({"tier_reason": "not_allowed", "served_tier": "standard"}, False),
        ({"tier_reason": "not_allowed", "served_tier": "bronze"}, True),
        ({"tier_reason": "over_quota", "served_tier": "standard"}, True),
        ({}, True),
    ],
)
def test_a_row_in_a_tier_that_is_not_open_to_its_owner_is_found(told: dict[str, str], broken: bool) -> None:
    run = owned(evidence(("vip", told)), "guest", allowed={"guest": ["loose"]})
    assert bool(rules.owners_stay_in_their_tiers(run).broken) is broken


def test_tokens_over_the_quota_are_found() -> None:
    run = owned(evidence(("gold", {}), ("gold", {})), "metered", quotas={"metered": 4})
    lines = [step(row, number, slo_nodes=1) for number in (1, 2) for row in (0, 1)]
    assert rules.quotas_hold(replace(run, decisions=lines)).broken == ()
    more = [*lines, step(0, 3)]
    assert "9 tokens" in rules.quotas_hold(replace(run, decisions=more)).broken[0]
    over = step(0, 3, event="demoted", reason="over_quota", tier="standard", time_s=0.21)
    default = step(0, 3, tier="standard")
    assert rules.quotas_hold(replace(run, decisions=[*lines, over, default])).broken == ()
    late = [*lines[:3], over, step(1, 4)]
    assert "row1 ran on" in rules.quotas_hold(replace(run, decisions=late)).broken[0]


@pytest.mark.parametrize(("given_up_s", "broken"), [(None, True), (1.5, True), (0.9, False)])
def test_a_miss_behind_one_with_more_time_is_found(given_up_s: float | None, broken: bool) -> None:
    run = evidence(("gold", {}), ("gold", LATE), ("silver", {}))
    first, second, third = run.asked
    run = replace(run, asked=[{**first, "deadline_s": 9.0}, second, third])
    events = [] if given_up_s is None else [step(1, 1, event="late", time_s=given_up_s)]
    found = rules.earliest_deadline_first(replace(run, decisions=events)).broken
    assert found == (("row1 missed (overload) behind row0",) if broken else ())


def test_a_row_whose_time_was_over_before_another_began_did_not_miss_because_of_it() -> None:
    run = evidence(("gold", {}), ("gold", {**LATE, "miss_reason": "waited"}))
    run = replace(run, asked=[{**run.asked[0], "deadline_s": 9.0}, {**run.asked[1], "deadline_s": 0.5}])
    assert rules.earliest_deadline_first(run).broken == ()


def told_run(reason: str | None, summary: int, report: int) -> Evidence:
    run = evidence(("gold", {}), ("gold", {**LATE, "miss_reason": reason}))
    promises = {"missed": {"overload": summary}, "moved": {}}
    totals = {"promises": promises, "slo": {"rows_with_slo": 2, "rows_attained": 1}}
    kept = {"missed_by_reason": {"overload": report}, "moved_by_reason": {}, "with_slo": 2, "attained": 1}
    return replace(
        run,
        summary={**totals, "tiers": {"gold": totals}},
        report={"promises": {"gold": kept, "all": kept}, "check": {"differences": []}},
    )


def test_misses_that_summary_or_report_count_otherwise_are_found() -> None:
    assert rules.misses_are_told(told_run("overload", 1, 1)).broken == ()
    assert {each.split(",")[0] for each in rules.misses_are_told(told_run("overload", 2, 1)).broken} == {
        "summary",
        "summary: miss_reason {'overload': 2}",
    }
    assert any(each.startswith("report") for each in rules.misses_are_told(told_run("overload", 1, 0)).broken)
    assert "row1 missed without a reason" in rules.misses_are_told(told_run(None, 1, 1)).broken


@pytest.mark.parametrize(("beside", "broken"), [(0.45, False), (0.44, True)])
def test_what_hopeless_rows_cost_is_found(beside: float, broken: bool) -> None:
    lost = [{"id": "row9", "slo_met": False}]
    assert bool(rules.hopeless_rows_cost_nothing(0.5, beside, lost).broken) is broken
    kept = [{"id": "row9", "slo_met": True}]
    assert rules.hopeless_rows_cost_nothing(0.5, 0.5, kept).broken == ("row9 kept what could not be kept",)
    run = evidence(("gold", {}), ("vip", REJECTED), ("gold", {}))
    assert attainment(run, ["row0", "row1"]) == 0.5


def test_the_rows_need_as_many_times_the_time_as_asked_for() -> None:
    rows = overload.usual_rows(28, 64)
    usual, hopeless = rows[:28], rows[28:]
    pace = overload.Pace(loading_s=1.0, work_s=7.0, texts={})
    due = [row["deadline_s"] for row in overload.with_deadlines(usual, pace, 2.0)]
    assert due[:7] == pytest.approx([4.0, 2.8, 4.0, 2.8, 4.0, 2.8, None])
    assert due.count(None) == 4
    assert max(row["deadline_s"] for row in overload.without_hope(hopeless, pace)) < 1.1
    owners = {(row["owner"], row["tier"]) for row in usual if row["owner"]}
    assert owners == {("guest", "vip"), ("metered", "gold")}
    assert len({row["prompt"] for row in rows}) == len(rows)
