"""Needs: tokens a row must get from its next step, from TPOT, TTFT and deadlines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.policy.lengths import EDGES, LengthModel
from specbatch.policy.need import MARGIN, NONE, Need, Needs, need_of, slack_s
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.slo import Slo

KEPT = 1.0 - MARGIN
SLOPES = st.just(0.0) | st.floats(1e-3, 5.0)


def row(slo: Slo, written: int = 0, first: float | None = None, max_tokens: int = 100) -> Row:
    prompt = Prompt(0, "0" * 32, None, "t", (1, 2), SamplingParams(max_tokens=max_tokens), slo, arrival=2.0)
    return Row(prompt, output=[7] * written, first_token_at=first)


def test_a_row_without_promises_needs_one_token() -> None:
    assert need_of(row(Slo(), 3, 1.0), 5.0, 10) is NONE
    assert (NONE.at(9.0), NONE.least_at(9.0)) == (1.0, 1.0)
    assert slack_s(row(Slo(), 3, 1.0), 5.0, 10, 1.0) == math.inf


def test_tpot_asks_for_what_the_row_is_behind() -> None:
    """100 ms a token, 21 tokens since the first one 1.8 s ago, and a step of 0.35 s ahead."""
    ahead = row(Slo(tpot_ms=100.0), written=22, first=10.0)
    need = need_of(ahead, 11.8, 50)
    assert need.at(0.35) == pytest.approx((1.8 + 0.35) / (0.1 * KEPT) - 21)
    assert need.at(0.05) == 1.0
    assert need.least_at(0.25) == pytest.approx(0.25 * 50 / (0.1 * (21 + 50) - 1.8))
    assert need_of(ahead, 11.8, 50, margin=0.0).at(0.5) == pytest.approx(2.0)


def test_large_arrears_are_made_up_for_over_half_of_what_remains() -> None:
    """21 tokens in 4 s at 100 ms a token is 19 behind; 25 of the 50 tokens left may take 0.37 s."""
    behind = row(Slo(tpot_ms=100.0), written=22, first=10.0)
    need = need_of(behind, 14.0, 50)
    assert need.at(0.1) == pytest.approx(0.1 * 25 / (0.1 * KEPT * (21 + 25) - 4.0))
    assert need.at(0.1) < (4.0 + 0.1) / (0.1 * KEPT) - 21
    hurried = need_of(behind, 14.5, 50)
    assert hurried.at(0.1) == hurried.least_at(0.1) == pytest.approx(0.1 * 50 / (0.1 * 71 - 4.5))


def test_tpot_means_nothing_before_the_first_token() -> None:
    assert need_of(row(Slo(tpot_ms=1.0)), 1e6, 50) is NONE


def test_a_tpot_that_no_speed_can_keep_is_lost() -> None:
    assert need_of(row(Slo(tpot_ms=100.0), 6, 10.0), 10.0 + 0.1 * (5 + 20), 20).lost
    assert not need_of(row(Slo(tpot_ms=100.0), 6, 10.0), 9.99 + 0.1 * (5 + 20), 20).lost


def test_a_deadline_asks_for_its_share_of_what_is_left() -> None:
    need = need_of(row(Slo(deadline=20.0), 1, 5.0), 10.0, 40)
    assert need.at(0.5) == pytest.approx(0.5 * 40 / (10.0 * KEPT))
    assert need.least_at(0.5) == pytest.approx(2.0)
    assert need_of(row(Slo(deadline=20.0), 1, 5.0), 20.0, 40).lost


def test_of_two_promises_the_harder_one_counts() -> None:
    both = need_of(row(Slo(deadline=20.0, tpot_ms=100.0), 22, 8.2), 10.0, 40)
    assert len(both.lines) == 2
    tpot, deadline = (base + 0.3 * slope for base, slope in both.lines)
    assert tpot > deadline > 1.0
    assert both.at(0.3) == pytest.approx(tpot)
    assert need_of(row(Slo(deadline=9.0, tpot_ms=100.0), 22, 8.0), 10.0, 40).lost


def test_slack_is_the_time_to_stand_still() -> None:
    tpot = row(Slo(tpot_ms=100.0), written=22, first=10.0)
    assert slack_s(tpot, 11.0, 50, 0.25) == pytest.approx(22 * 0.1 * KEPT - 1.0 - 0.25)
    deadline = row(Slo(deadline=20.0), written=22, first=10.0)
    assert slack_s(deadline, 11.0, 10, 0.25) == pytest.approx(9.0 * KEPT - 2.5)
    waiting = row(Slo(ttft_ms=4000.0))
    assert slack_s(waiting, 3.0, 50, 0.25) == pytest.approx(2.0 + 4.0 * KEPT - 3.0 - 0.25)
    assert slack_s(row(Slo(ttft_ms=4000.0), 1, 5.0), 3.0, 50, 0.25) == math.inf


@settings(max_examples=300, deadline=None)
@given(
    st.floats(1.0, 1000.0),
    st.integers(1, 60),
    st.floats(0.0, 20.0),
    st.floats(0.001, 1.0),
    st.integers(1, 60),
)
def test_who_has_slack_needs_one_token_only(
    tpot_ms: float, written: int, elapsed: float, step_s: float, remaining: int
) -> None:
    """Slack and need are two sides of one promise; who has none must be given time to make up for it."""
    some = row(Slo(tpot_ms=tpot_ms), written, 5.0)
    need = need_of(some, 5.0 + elapsed, remaining)
    slack = slack_s(some, 5.0 + elapsed, remaining, step_s)
    if slack > 1e-6:
        assert need.at(step_s) == 1.0
    if slack < -1e-6:
        assert need.lost or Need(need.lines).at(step_s) > 1.0
    if not need.lost:
        assert need.at(2 * step_s) >= need.at(step_s) >= 1.0


def test_rows_that_keep_up_with_the_least_keep_their_promise() -> None:
    """However far behind: steps that bring exactly the least end at the promised time."""
    need = need_of(row(Slo(tpot_ms=100.0), 2, 0.0), 3.0, 60)
    step_s = 0.5
    steps = 60 / need.least_at(step_s)
    assert 3.0 + steps * step_s == pytest.approx(0.1 * 61)


def test_lengths_are_bounded_by_the_limit_until_rows_have_ended() -> None:
    model = LengthModel()
    fresh = row(Slo(), max_tokens=90)
    assert model.remaining(fresh) == 90
    model.advance(fresh)
    assert model.remaining(fresh) == 90
    fresh.output += [7] * 40
    model.advance(fresh)
    assert model.remaining(fresh) == 50


def end_at(model: LengthModel, length: int, max_tokens: int = 100) -> None:
    some = row(Slo(), max_tokens=max_tokens)
    model.advance(some)
    some.output = [7] * length
    model.ended(some)


def test_lengths_that_were_seen_tighten_what_remains() -> None:
    model = LengthModel()
    for _ in range(200):
        end_at(model, 30)
    fresh = row(Slo())
    model.advance(fresh)
    assert 30 <= model.remaining(fresh) <= 32
    fresh.output = [7] * 20
    model.advance(fresh)
    assert 10 <= model.remaining(fresh) <= 12
    fresh.output = [7] * 33
    model.advance(fresh)
    assert model.remaining(fresh) == 67, "nobody came that far: nothing is known"


def test_rows_that_are_still_running_count_against_the_short_ones() -> None:
    """A tenth ended early, the others go on: the early ones say little about the rest."""
    biased, fair = LengthModel(), LengthModel()
    for model in (biased, fair):
        for _ in range(100):
            end_at(model, 6)
    others = [row(Slo(), 50) for _ in range(900)]
    for other in others:
        fair.advance(other)
    fresh = row(Slo())
    for model in (biased, fair):
        model.advance(fresh)
    assert biased.remaining(fresh) <= 8
    assert fair.remaining(fresh) == 100


def test_a_row_cut_off_at_its_limit_did_not_end() -> None:
    model = LengthModel()
    for _ in range(100):
        end_at(model, 20, max_tokens=20)
    fresh = row(Slo())
    model.advance(fresh)
    assert model.remaining(fresh) == 100


def test_memory_of_lengths_is_bounded() -> None:
    model = LengthModel()
    for length in (0, 1, 10**4, 10**6):
        end_at(model, length, max_tokens=10**7)
    assert list(EDGES) == sorted(set(EDGES))
    assert len(EDGES) == 97
    fresh = row(Slo())
    model.advance(fresh)
    assert model.remaining(fresh) == 100


def test_hand_made_needs() -> None:
    need = Need(((1.0, 0.5), (0.0, 2.0)), least=((0.0, 0.25), (0.0, 0.0)))
    assert (need.at(1.0), need.at(0.5), need.least_at(8.0)) == (2.0, 1.25, 2.0)
    gentle = Need(((5.0, 1.0),), ((0.0, 2.0),))
    assert (gentle.at(1.0), gentle.at(2.0), gentle.least_at(1.0)) == (2.0, 4.0, 6.0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5.0, 5.0), SLOPES), max_size=2),
    SLOPES,
    st.floats(0.01, 5.0),
    st.floats(1.0, 6.0),
)
def test_the_longest_step_is_the_one_at_which_needs_reach_what_there_is(
    lines: list[tuple[float, float]], slope: float, step_s: float, tokens: float
) -> None:
    spread = tuple((0.0, slope) for _ in lines)
    needs = Needs([Need(tuple(lines), spread), Need()])
    longest = float(needs.longest(np.array([tokens, 1.0]))[0])
    at = float(needs.at(step_s)[0])
    if step_s < longest - 1e-6:
        assert at <= tokens + 1e-6
    if step_s > longest + 1e-6:
        assert at >= tokens - 1e-6
    assert needs.longest(np.array([tokens, 1.0]))[1] == math.inf
    table = needs.at(np.array([step_s, 2 * step_s])[:, None, None])
    assert table.shape == (2, 2)
    assert table[0, 0] == at
    assert Need(((3.0, 0.0),)).least_at(1.0) == 3.0


def test_a_row_that_has_not_begun_is_expected_to_be_like_others() -> None:
    model = LengthModel()
    for _ in range(200):
        end_at(model, 30)
    assert 30 <= model.remaining(row(Slo())) <= 32
    assert model.remaining(row(Slo(), 0, max_tokens=12)) == 12


def test_tiers_are_told_apart_unless_rows_are_of_one_kind() -> None:
    by_tier, all_alike = LengthModel(), LengthModel(kind=lambda _: "")
    other = row(Slo())
    other.prompt = replace(other.prompt, tier="another")
    for model in (by_tier, all_alike):
        for _ in range(200):
            end_at(model, 30)
    assert by_tier.remaining(other) == 100
    assert 30 <= all_alike.remaining(other) <= 32
