"""More than can be done in time: each tier's rule to the letter, and who came to what."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from specbatch.config import JobConfig
from specbatch.engine.loop import Loop, Target
from specbatch.rows import Prompt, SamplingParams, Status
from specbatch.slo import Slo
from tests.engine.drafters import Oracle
from tests.engine.overload import PROFILE, TOKEN_S, PassClock, TimedExecutor, row, run
from tests.engine.table_model import CONFIG, PromptFeed, word_tokenizer
from tests.engine.test_loop import job
from tests.engine.test_speculation import future
from tests.hardware.costs import pass_s

TIERS: dict[str, object] = {
    "gold": {"priority": 0},
    "silver": {"priority": 1, "on_overload": "degrade"},
    "bronze": {"priority": 5, "deadline_s": 30.0},
    "vip": {"priority": 0, "on_overload": "reject"},
}
KINDS = ("gold", "silver", "vip")
SLOTS = 4
SERVICE_S = 12 * pass_s(SLOTS, SLOTS, 20)
"""A row's twelve tokens in a full house."""


def crowd(count: int, load: float = 2.0) -> list[Prompt]:
    """Rows that come ``load`` times as fast as they can be served, with time for two services each."""
    rows = []
    for index in range(count):
        arrival = index * SERVICE_S / SLOTS / load
        rows.append(row(index, KINDS[index % 3], Slo(deadline=arrival + 2 * SERVICE_S), arrival))
    return rows


def tiered(policy: str, **settings: object) -> JobConfig:
    return job(**{"policy": policy, "max_rows_in_flight": SLOTS, "tiers": TIERS, **settings})


@pytest.mark.parametrize("policy", ["dspark", "auto"])
def test_at_twice_the_load_each_tier_gets_its_own_rule_and_every_miss_has_a_reason(policy: str) -> None:
    outcome = run(crowd(48), tiered(policy))
    assert len(outcome.answers) == 48
    kept = Counter(answer.tier for answer in outcome.answers.values() if answer.slo_met)
    assert sum(kept.values()) >= 15, "their prompts counted, two in five can be served in time"
    told = {(entry.key, entry.event) for entry in outcome.host.entries}
    rules = {"gold": "late", "silver": "degrade", "vip": "reject"}
    for index, answer in outcome.answers.items():
        assert answer.tier is not None
        applied = (f"key{index}", rules[answer.tier]) in told
        if answer.slo_met:
            assert (answer.miss_reason, applied) == (None, False)
            continue
        assert answer.miss_reason in ("hopeless", "overload", "waited", "slow")
        if not applied:
            late_s = answer.finished_at - (answer.slo.deadline or 0.0)
            assert late_s <= 2 * pass_s(SLOTS + 3, SLOTS, 20), "it was over before anything could be done"
            continue
        assert answer.succeeded is (answer.tier != "vip")
        assert answer.error_code == ("overloaded" if answer.tier == "vip" else None)
        moved = ("bronze", "degraded") if answer.tier == "silver" else (None, None)
        assert (answer.served_tier, answer.tier_reason) == moved


def test_a_row_that_cannot_be_saved_takes_nothing_from_those_that_can() -> None:
    """Rows that would need a step per microsecond, first in the file and most urgent by their deadline."""
    good = [row(i, "gold", Slo(deadline=1.5 * SERVICE_S)) for i in range(SLOTS)]
    lost = [row(10 + i, "gold", Slo(deadline=0.4 * TOKEN_S)) for i in range(12)]
    alone, crowded = (run(rows, tiered("dspark")) for rows in (good, [*lost, *good]))
    assert all(answer.slo_met for answer in alone.answers.values())
    assert all(crowded.answers[each.row_index].slo_met for each in good)
    begun = [crowded.answers[each.row_index].admitted_at or 0.0 for each in lost]
    assert min(begun) >= min(crowded.answers[i].finished_at for i in range(SLOTS)), "in places that are left"
    assert all(crowded.answers[each.row_index].miss_reason == "hopeless" for each in lost)
    assert all(crowded.answers[each.row_index].succeeded for each in lost)


def test_company_that_has_nothing_to_win_waits_while_it_would_break_a_promise() -> None:
    """Three rows in a step just make it; a fourth that is lost anyway would be one too many."""
    tau = 1050 * (0.7 * pass_s(3, 3, 64) + 0.3 * pass_s(4, 4, 64))
    good = [row(i, "gold", Slo(tpot_ms=tau), token_ids=(i, *[7] * 57)) for i in range(3)]
    lost, loose = row(3, "bronze", Slo(deadline=0.001), token_ids=(3, *[7] * 57)), row(3, "bronze")
    settings = tiered("dspark", prefix_sharing=False, prefill_chunk=512)
    outcome = run([lost, *good], settings)
    assert all(outcome.answers[i].slo_met for i in range(3))
    assert outcome.answers[3].succeeded
    beside = run([replace(loose, token_ids=lost.token_ids), *good], settings)
    assert not all(beside.answers[i].slo_met for i in range(3)), "one with a right to its place is let in"


@pytest.mark.parametrize("profile", [True, False])
def test_no_row_waits_while_a_less_urgent_one_runs(profile: bool) -> None:
    """Full slots, deadlines in any order: whoever waits has less of a claim than everybody in flight."""
    rows = [
        row(i, "gold" if i % 2 else "bronze", Slo(deadline=40.0 + 7 * ((i * 5) % 11)), 0.03 * i)
        for i in range(22)
    ]
    rows += [row(30 + i, "gold", Slo(), 0.05 * i) for i in range(6)]
    settings, host = tiered("dspark"), PassClock()
    target = Target(CONFIG, word_tokenizer(), TimedExecutor(host=host), profile=PROFILE if profile else None)
    loop = Loop(target, settings, PromptFeed(rows, settings), host)
    while loop.rows_left():
        loop._admission.review()
        loop._admission.admit()
        now, scheduler = host.now(), loop._scheduler
        waiting = loop._admission._waiting.peek(now)
        parked = [scheduler.urgency(each, now) for each in scheduler.parked]
        claims = [each.claim for each in (*parked, *([waiting] if waiting else []))]
        for each in scheduler.running:
            free_to_go = each.num_preemptions < 3
            assert not (free_to_go and any(claim < scheduler.urgency(each, now).claim for claim in claims))
        loop.step()
        loop.check()
    moves = [answer.num_preemptions for answer in host.answers.values()]
    assert 0 < sum(moves) <= len(rows)
    assert max(moves) <= 3
    done = [
        host.answers[each.row_index].finished_at
        for each in sorted(rows[:22], key=lambda r: r.slo.deadline or 0)
    ]
    assert len(done) == 22


def test_equal_rows_go_oldest_first_and_nobody_moves_for_them() -> None:
    rows = [row(i, "gold", Slo(deadline=50.0), 0.01 * i) for i in range(12)]
    outcome = run(rows, tiered("dspark"))
    admitted = [outcome.answers[i].admitted_at for i in range(12)]
    assert admitted == sorted(admitted, key=lambda time: time or 0.0)
    assert outcome.stats.preemptions == 0


def test_a_degraded_row_is_held_to_what_it_was_promised_and_runs_under_what_it_has() -> None:
    tiers = {**TIERS, "bronze": {"priority": 5, "deadline_s": 9.0, "ttft_slo_ms": 8000}}
    impossible = row(0, "silver", Slo(deadline=0.001, ttft_ms=1.0))
    outcome = run([impossible, row(1, "gold")], tiered("dspark", tiers=tiers))
    answer = outcome.answers[0]
    assert (answer.slo.deadline, answer.deadline_met, answer.slo_met) == (0.001, False, False)
    assert (answer.served_tier, answer.miss_reason) == ("bronze", "hopeless")


def test_without_a_profile_only_what_is_over_is_judged_and_that_is_recorded() -> None:
    rows = [row(i, "vip", Slo(deadline=0.5 * TOKEN_S)) for i in range(2)]
    rows += [row(9, "vip", Slo(tpot_ms=0.001))]
    outcome = run(rows, tiered("dspark"), profile=False)
    assert "not judged" in outcome.stats.overload_notice
    assert {outcome.answers[i].miss_reason for i in (0, 1)} == {"slow"}
    assert (outcome.answers[9].status, outcome.answers[9].miss_reason) == (Status.TRUNCATED, "slow")
    assert outcome.stats.fallback_steps > 0
    assert "profile" in outcome.stats.fallback
    assert any(entry.key is None and "profile" in entry.reason for entry in outcome.host.entries)


def test_expired_rows_never_run() -> None:
    rows = [row(i, "gold", Slo(deadline=1.3 * SERVICE_S)) for i in range(20)]
    outcome = run(rows, tiered("off", late="drop"), profile=False)
    assert outcome.host.refused, "not all could be served"
    for index, (status, code) in outcome.host.refused.items():
        assert (status, code) == (Status.EXPIRED, "deadline_passed")
        assert index not in outcome.seen.moved
        assert index not in outcome.feed.fetched


def test_a_loose_row_advances_as_often_as_promised() -> None:
    tight = [row(i, "gold", Slo(tpot_ms=1e3 * 1.2 * pass_s(2, 2, 30))) for i in range(2)]
    loose = [row(10 + i, "loose") for i in range(6)]
    tiers = {**TIERS, "loose": {"priority": 9, "min_progress": 3}}
    for policy in ("off+deferral", "priority"):
        outcome = run([*tight, *loose], tiered(policy, tiers=tiers, max_rows_in_flight=8))
        gaps = [b - a for each in loose for a, b in pairwise(outcome.seen.moved[each.row_index])]
        assert max(gaps) <= 3
        assert max(gaps) > 1, "they did sit out"


def test_a_row_waits_no_longer_than_its_tier_allows() -> None:
    stream = [row(i, "gold", Slo(), 0.9 * max(0, i - 12) * SERVICE_S / SLOTS) for i in range(52)]
    patient = row(90, "batch")
    tiers = {**TIERS, "batch": {"priority": 50, "max_wait": 3 * SERVICE_S}}
    without, limited = (
        run([*stream, patient], tiered("off", tiers=each), profile=False)
        for each in ({**TIERS, "batch": {"priority": 50}}, tiers)
    )
    queued = [each.answers[90].queued_s or math.inf for each in (without, limited)]
    assert queued[0] > 6 * SERVICE_S
    assert 3 * SERVICE_S <= queued[1] <= 4 * SERVICE_S, "it takes the next place that is free"


def test_shares_hold_while_both_have_rows_and_nothing_is_withheld_otherwise() -> None:
    urgent = [row(i, "gold") for i in range(36)]
    batch = [row(50 + i, "batch") for i in range(12)]
    tiers = {**TIERS, "batch": {"priority": 50, "share": 0.25}}
    outcome = run([*urgent, *batch], tiered("off", tiers=tiers), profile=False)
    stats = outcome.stats
    assert stats.achieved_tokens["batch"] >= stats.entitled_tokens["batch"] - SLOTS, "but for a step"
    ends = {
        name: max(a.finished_at for a in outcome.answers.values() if a.tier == name)
        for name in ("gold", "batch")
    }
    assert ends["batch"] <= 1.25 * ends["gold"]
    alone = run(batch, tiered("off", tiers=tiers), profile=False)
    assert alone.stats.steps <= 12 * 12 // SLOTS + 12, "all places are used"


def test_quotas_and_allowed_tiers_of_owners_hold_over_a_run() -> None:
    rows = [replace(row(i, "gold", Slo(deadline=99.0)), owner="lab" if i % 2 else "shop") for i in range(24)]
    owners = {"lab": {"quota": 5}}
    settings = tiered("off", owners=owners)
    outcome = run(rows, settings, profile=False)
    moved = {i for i, a in outcome.answers.items() if a.tier_reason == "over_quota"}
    assert {i % 2 for i in moved} == {1}, "nobody else's rows"
    under_gold = sum(outcome.answers[i].output_tokens for i in range(1, 24, 2) if i not in moved)
    assert under_gold <= 40 + SLOTS, "from then on the default tier"
    for index in moved:
        answer = outcome.answers[index]
        assert (answer.tier, answer.served_tier, answer.slo) == ("gold", "standard", Slo())
    assert outcome.host.snapshots[-1].owner_tokens["lab"] > 40
    feed_used = {"lab": 40}
    host = PassClock()
    feed = PromptFeed(rows[:4], settings)
    feed.used = feed_used
    loop = Loop(Target(CONFIG, word_tokenizer(), TimedExecutor(host=host)), settings, feed, host)
    loop.run()
    assert {i: a.tier_reason for i, a in host.answers.items()} == {
        0: None,
        1: "over_quota",
        2: None,
        3: "over_quota",
    }


def test_a_prompt_whose_pages_are_not_all_there_leaves_others_their_drafts() -> None:
    long = tuple(1 + i % 29 for i in range(30))
    rows = [
        row(0, "gold", Slo(tpot_ms=1.5e3 * TOKEN_S), params=SamplingParams(max_tokens=20)),
        row(9, "silver", token_ids=long, params=SamplingParams(max_tokens=4)),
    ]
    settings = tiered("auto", prefill_chunk=1, max_rows_in_flight=8)
    outcome = run(rows, settings, Oracle(future=future), pages=14)
    assert all(answer.succeeded for answer in outcome.answers.values())


@pytest.mark.parametrize("policy", ["auto", "adaserve", "dspark", "off+deferral"])
def test_a_row_whose_owner_is_over_quota_while_it_writes_goes_on(policy: str) -> None:
    rows = [
        replace(row(i, "gold", Slo(tpot_ms=6e3 * TOKEN_S)), owner="alice" if i % 2 else "bob")
        for i in range(8)
    ]
    outcome = run(rows, tiered(policy, default_tier="bronze", owners={"alice": {"quota": 5}}))
    assert len(outcome.answers) == 8
    assert any(answer.served_tier == "bronze" or answer.tier_reason for answer in outcome.answers.values())
