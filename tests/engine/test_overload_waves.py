"""More rows at once than can be done in time: who begins, and what becomes of guaranteed shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specbatch.rows import SamplingParams
from specbatch.slo import Slo
from tests.engine.overload import TOKEN_S, Outcome, row, run
from tests.engine.test_overload import KINDS, TIERS, tiered
from tests.hardware.costs import pass_s


def wave(slots: int, policy: str) -> Outcome:
    """Four times as many rows at once as there are places, half of them due early, and twice the work."""
    tiers = {**TIERS, "loose": {"priority": 20, "min_progress": 8, "share": 0.1}}
    kinds, texts = (*KINDS, *KINDS, "loose"), [tuple((7 * i + j) % 29 for j in range(40)) for i in range(68)]
    params = SamplingParams(max_tokens=48)
    rows = [row(i, kinds[i % 7], token_ids=texts[i], params=params) for i in range(len(texts))]
    settings = tiered(policy, tiers=tiers, max_rows_in_flight=slots, prefill_chunk=512)
    work = max(a.finished_at for a in run(rows, settings, pages=2000).answers.values())
    promised = [each for each in rows if each.tier != "loose"]
    late = work * len(promised) / len(rows) / 2.0
    due = {each: Slo(deadline=late * (0.6 if each.row_index % 2 else 1.0)) for each in promised}
    return run([replace(each, slo=due.get(each, Slo())) for each in rows], settings, pages=2000)


@pytest.mark.parametrize("slots", [4, 8, 16])
@pytest.mark.parametrize("policy", ["dspark", "auto"])
def test_no_more_rows_begin_together_than_can_end_in_time(policy: str, slots: int) -> None:
    """Nobody knows yet how long answers are. Half of the 59 rows could be served at the very best; where all
    begin at once, in 16 places nobody is."""
    outcome = wave(slots, policy)
    assert sum(answer.slo_met is True for answer in outcome.answers.values()) >= 14


def test_a_share_takes_its_own_places_and_no_others() -> None:
    outcome = wave(4, "dspark")
    promised = [a for a in outcome.answers.values() if a.tier != "loose" and a.slo_met]
    until = max(answer.finished_at for answer in promised)
    spans = [(a.admitted_at, a.finished_at) for a in outcome.answers.values() if a.tier == "loose"]
    begins = [begin for begin, _ in spans if begin is not None and begin < until]
    assert begins, "it has a share"
    for moment in begins:
        together = sum(begin is not None and begin <= moment < end for begin, end in spans)
        assert together <= 2, "one place of four is more than a tenth; a second one where a step is owed"
    stats = outcome.stats
    assert stats.achieved_tokens["loose"] >= stats.entitled_tokens["loose"] - 16


def test_only_what_could_not_be_kept_alone_is_called_hopeless() -> None:
    """Twelve rows that come together, each with time enough for itself, and one without."""
    rows = [row(i, "vip", Slo(deadline=14 * TOKEN_S)) for i in range(12)]
    rows.append(row(20, "vip", Slo(deadline=TOKEN_S), token_ids=(1,) * 60))
    answers = run(rows, tiered("dspark")).answers
    assert answers[20].miss_reason == "hopeless"
    missed = [answers[i].miss_reason for i in range(12) if not answers[i].slo_met]
    assert missed, "they cannot all be served"
    assert not {"hopeless"} & set(missed)


def test_nobody_with_more_time_goes_before_one_that_has_to_wait() -> None:
    """Rows wait where joining would cost others theirs; short ones that would fit wait behind them."""
    long, short = SamplingParams(max_tokens=40), SamplingParams(max_tokens=2)
    rows = [row(i, "gold", Slo(deadline=1.15 * 40 * pass_s(4, 4, 30)), params=long) for i in range(8)]
    rows += [row(20 + i, "gold", Slo(deadline=3.0 + i), params=short) for i in range(4)]
    outcome = run(rows, tiered("dspark", max_rows_in_flight=16))
    begun = [outcome.answers[each.row_index].admitted_at for each in rows]
    kept = [i for i in range(8) if outcome.answers[i].slo_met]
    assert 0 < len(kept) < 8
    assert min(at or 0.0 for at in begun[8:]) > max(begun[i] or 0.0 for i in kept)


def test_a_row_that_waited_as_long_as_it_may_keeps_the_place_it_gets() -> None:
    tiers = {**TIERS, "batch": {"priority": 50, "max_wait": 3 * TOKEN_S}}
    rows = [row(i, "gold") for i in range(12)] + [row(90, "batch")]
    outcome = run(rows, tiered("off", tiers=tiers, max_rows_in_flight=1))
    answer = outcome.answers[90]
    assert answer.num_preemptions == 0
    assert answer.finished_at < sorted(outcome.answers[i].finished_at for i in range(12))[2]


def test_a_share_brings_in_no_rows_that_are_no_longer_of_its_tier() -> None:
    """Their owner's quota is used up: they run under the default tier, which has no share."""
    tiers = {**TIERS, "loose": {"priority": 20, "share": 0.1}, "rest": {"priority": 30}}
    rows = [replace(row(i, "loose"), owner="lab") for i in range(30)]
    rows += [row(100 + i, "gold") for i in range(30)]
    settings = {"tiers": tiers, "default_tier": "rest", "owners": {"lab": {"quota": 5}}}
    outcome = run(rows, tiered("off", max_rows_in_flight=8, **settings), profile=False)
    last = max(outcome.answers[100 + i].admitted_at or 0.0 for i in range(30))
    early = [i for i in range(30) if (outcome.answers[i].admitted_at or 0.0) < last]
    assert len(early) <= 8, "those that began before the quota was used up, and one step of places"


def test_one_token_alone_breaks_no_promise_of_a_time_per_token() -> None:
    params = SamplingParams(max_tokens=1)
    outcome = run([row(0, "vip", Slo(tpot_ms=0.001), params=params)], tiered("dspark"))
    assert outcome.answers[0].slo_met
