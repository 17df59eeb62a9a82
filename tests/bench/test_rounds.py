"""Comparisons on the table model and a clock that only passes move: figures that can be computed by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from specbatch.bench.facts import facts
from specbatch.bench.figures import TOTAL, Spread
from specbatch.bench.results import CaseResult, as_dict, judge
from specbatch.bench.rig import Rig
from specbatch.bench.rounds import measure_plain, run_rounds, turn
from specbatch.draft.combination import FirstThen
from specbatch.draft.suffix import SuffixDrafter
from tests.bench.bench_rig import TOKENS, cases, job, quiet, rig
from tests.engine.drafters import Oracle
from tests.engine.test_speculation import future
from tests.hardware.costs import pass_s

MIXED = {
    "rows": 16,
    "tiers": {
        "tight": {"rows": 0.25, "tpot": "0.7x"},
        "medium": {"rows": 0.25, "tpot": "1.5x"},
        "loose": {"rows": 0.5},
    },
}


def result(policies: str, here: Rig, workload: dict[str, object] = MIXED, repeats: int = 2) -> CaseResult:
    case = cases(workload, max_rows_in_flight=16)[0]
    return judge(run_rounds(here, case, policies.split(","), repeats, quiet))


def median(found: CaseResult, policy: str, tier: str, name: str) -> float:
    spread = found.policies[policy].by_tier[tier][name]
    assert spread is not None
    return spread.median


def test_every_policy_comes_first_as_often_and_follows_different_ones() -> None:
    names = ["a", "b", "c"]
    orders = [turn(names, repeat) for repeat in range(6)]
    assert [order[0] for order in orders[:3]] == names
    assert all(sorted(order) == names for order in orders)
    assert orders[3] == orders[0][::-1]


def test_plain_decoding_is_measured_for_the_batch_and_for_a_row_that_is_alone() -> None:
    batch, alone = cases(
        {
            "rows": 16,
            "cases": [
                {"tiers": {"tight": {"rows": 1.0, "tpot": "1x"}}},
                {"tiers": {"tight": {"rows": 1.0, "tpot": "1x alone"}}},
            ],
        },
        max_rows_in_flight=16,
    )
    plain = measure_plain(rig(), batch, quiet)
    assert plain.tpot_s == pytest.approx(pass_s(16, 16, 9), rel=0.02)
    assert plain.alone_tpot_s == plain.tpot_s, "nobody asked for another"
    assert plain.rows_per_s == pytest.approx(16 / plain.e2e_s, rel=0.01)
    other = measure_plain(rig(), alone, quiet)
    assert other.tpot_s == pytest.approx(plain.tpot_s)
    assert other.alone_tpot_s == pytest.approx(pass_s(1, 1, 9), rel=0.02)


def test_plain_decoding_keeps_what_is_as_long_as_itself_and_no_less() -> None:
    found = result("off", rig())
    assert median(found, "off", "tight", "attainment") == 0.0
    assert median(found, "off", "medium", "attainment") == 1.0
    assert found.policies["off"].by_tier["loose"]["attainment"] is None, "nothing was promised"
    assert median(found, "off", TOTAL, "attainment") == 0.5
    whole = median(found, "off", TOTAL, "output_tokens_per_s")
    assert median(found, "off", TOTAL, "goodput_tokens_per_s") == pytest.approx(whole / 4)
    assert whole == pytest.approx(16 * TOKENS / median(found, "off", TOTAL, "seconds"))


def test_strict_priority_serves_one_tier_after_the_other() -> None:
    found = result("off,priority", rig())
    assert median(found, "priority", "tight", "attainment") == 1.0
    assert median(found, "priority", "tight", "tpot_ms_p50") == pytest.approx(1e3 * pass_s(4, 4, 9), rel=0.02)
    last_tight = median(found, "priority", "tight", "e2e_s_p99")
    assert median(found, "priority", "medium", "ttft_s_p50") > last_tight
    assert median(found, "priority", "loose", "ttft_s_p50") > median(found, "priority", "medium", "e2e_s_p99")
    assert median(found, "priority", TOTAL, "output_tokens_per_s") < median(
        found, "off", TOTAL, "output_tokens_per_s"
    )


def test_strict_priority_takes_no_notice_of_deadlines() -> None:
    tiers = {"tight": {"rows": 0.5, "ttft": "1x"}, "loose": {"rows": 0.5, "deadline": "0.5x"}}
    workload = {"rows": 8, "rows_in_flight": 4, "tiers": tiers}
    found = result("off,priority", rig(), workload, repeats=1)
    last_tight = median(found, "priority", "tight", "e2e_s_p99")
    assert median(found, "priority", "loose", "ttft_s_p50") > last_tight
    assert median(found, "off", "loose", "ttft_s_p50") < median(found, "off", "tight", "e2e_s_p99")
    assert found.policies["priority"].by_tier["loose"]["attainment"] == Spread(0.0, 0.0, 0.0), (
        "judged all the same"
    )


def test_deferral_alone_lets_the_tight_rows_have_a_smaller_batch() -> None:
    found = result("off,off+deferral", rig())
    assert median(found, "off+deferral", "tight", "attainment") == 1.0
    assert median(found, "off+deferral", TOTAL, "rested_per_step") > 1.0
    error = found.policies["off+deferral"].pass_error
    assert error is not None
    assert error.median < 0.05, "the profile is the formula that the clock follows"
    assert found.policies["off"].pass_error is None


def test_predictions_of_a_profile_that_is_wrong_are_told_to_be() -> None:
    found = result("off+deferral", rig(slowness=6.0), repeats=1)
    error = found.policies["off+deferral"].pass_error
    assert error is not None
    assert error.p90 > 0.4, "the first steps, before the correction knows"


def test_ratios_are_within_one_repeat_and_against_the_best_baseline() -> None:
    found = result("off,fixed:2", rig(Oracle(future=future)), repeats=2)
    fixed = found.policies["fixed:2"]
    assert found.best == "fixed:2"
    assert fixed.to_best == Spread(1.0, 1.0, 1.0)
    ratios = [runs["off"].seconds / runs["fixed:2"].seconds for runs in found.rounds.rounds]
    assert fixed.to_off is not None
    assert fixed.to_off.median == pytest.approx(statistics.median(ratios))
    assert fixed.to_off.median > 1.0
    assert median(found, "fixed:2", TOTAL, "accepted_per_pass") == pytest.approx(1.75, abs=0.1)
    assert median(found, "fixed:2", TOTAL, "rejected_share") == 0.0
    assert not any(each.differing_rows for each in found.policies.values())


def test_without_promises_the_baseline_is_the_fastest() -> None:
    found = result("off,fixed:2", rig(Oracle(future=future)), {"rows": 8}, repeats=1)
    assert (found.best, found.measure) == ("fixed:2", "output_tokens_per_s")
    assert found.policies["off"].by_tier[TOTAL]["attainment"] is None


def test_waiting_for_arrivals_is_no_time_of_work() -> None:
    workload = {"rows": 4, "arrivals": {"rate": "0.1x"}, "tiers": {"tight": {"rows": 1.0, "ttft": "1x"}}}
    case = cases(workload, max_rows_in_flight=4)[0]
    found = run_rounds(rig(), case, ["off"], 1, quiet)
    run = found.rounds[0]["off"]
    assert run.idle_s > 0.5 * run.seconds
    assert run.seconds > max(prompt.arrival for prompt in found.prompts)
    assert judge(found).policies["off"].by_tier["tight"]["attainment"] == Spread(1.0, 1.0, 1.0)


def test_a_run_finds_what_its_policy_asks_for_and_a_drafter_that_has_seen_nothing() -> None:
    head = Oracle(future=future)
    both = replace(rig(head), suffix=True)
    first, second = (both.fresh(job(policy="fixed:4")).drafter for _ in range(2))
    assert isinstance(first, FirstThen)
    assert first is not second
    alone = replace(rig(), suffix=True)
    one, other = (alone.fresh(job(policy="auto")).drafter for _ in range(2))
    assert isinstance(one, SuffixDrafter)
    assert one is not other
    assert rig(head).fresh(job(policy="eagle")).drafter is head
    for policy, drafts, profile in (
        ("off", False, False),
        ("off+deferral", False, True),
        ("eagle", True, False),
        ("auto", True, True),
    ):
        found = both.fresh(job(policy=policy))
        assert (found.drafter is not None, found.profile is not None) == (drafts, profile)


def test_repeats_with_a_suffix_drafter_do_not_know_the_answers_of_earlier_ones() -> None:
    found = result("fixed:4", replace(rig(), suffix=True), {"rows": 16}, repeats=3)
    spread = found.policies["fixed:4"].by_tier[TOTAL]["seconds"]
    assert spread is not None
    assert spread.low == pytest.approx(spread.high)


def test_rows_whose_text_differs_are_counted() -> None:
    case = cases({"rows": 4}, max_rows_in_flight=4)[0]
    found = run_rounds(rig(), case, ["off", "priority"], 1, quiet)
    assert found.differing_rows("priority") == 0
    runs = found.rounds[0]
    swapped = (*runs["priority"].answers[:2], *runs["priority"].answers[:1:-1])
    other = {**runs, "priority": replace(runs["priority"], answers=swapped)}
    assert replace(found, rounds=(other,)).differing_rows("priority") == 2


def test_the_object_for_programs_holds_what_the_tables_show() -> None:
    found = as_dict(result("off,priority", rig(), repeats=1))
    assert found["rows"] == 16
    assert found["best_baseline"] == {"policy": "priority", "by": "goodput_tokens_per_s"}
    promised = found["promises_s"]
    plain = found["plain_decoding"]
    assert isinstance(promised, dict)
    assert isinstance(plain, dict)
    assert promised["tight"] == {"TPOT": pytest.approx(0.7 * plain["tpot_s"])}
    assert promised["loose"] == {}


def test_joules_of_every_policy_are_measured_and_compared_with_off() -> None:
    case = cases({"rows": 4, "rows_in_flight": 2})[0]
    found = judge(run_rounds(rig(watts=50.0), case, ["off", "priority"], 1, quiet))
    for policy, each in found.policies.items():
        run = found.rounds.rounds[0][policy]
        joules = each.by_tier[TOTAL]["joules_per_token"]
        assert joules is not None
        assert joules.median == pytest.approx(50.0 * run.seconds / run.stats.output_tokens)
    ratio = found.policies["priority"].joules_to_off
    assert ratio is not None
    assert ratio.median == pytest.approx(1.0)
    told = dict(facts(found))["J/token"]
    assert "priority" in told
    assert "1.00 x off" in told
    assert "; assumed: 50 W at all times" in told
    energy = as_dict(found)["energy"]
    assert energy == {
        "method": "assumed",
        "scope": "50 W at all times, nothing was measured",
        "reason": None,
    }


def test_without_a_meter_joules_are_null_and_the_reason_is_told() -> None:
    found = judge(run_rounds(rig(), cases({"rows": 2})[0], ["off"], 1, quiet))
    assert found.policies["off"].by_tier[TOTAL]["joules_per_token"] is None
    assert dict(facts(found))["J/token"] == "none: RAPL: no counters here"
    assert as_dict(found)["energy"] == {"method": "none", "scope": None, "reason": "RAPL: no counters here"}
