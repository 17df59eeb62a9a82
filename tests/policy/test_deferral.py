"""Who sits out: as few as help, the most relaxed first, nobody for the hopeless."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.policy.deferral import Outlook, Seat, sit_out
from specbatch.rows import Prompt, Row, SamplingParams


def row(index: int = 0) -> Row:
    return Row(Prompt(index, "0" * 32, None, "t", (1,), SamplingParams()))


def seat(slack_s: float = math.inf, rested: int = 0, prefill: int = 0, most: int = 7) -> Seat:
    return Seat(row(), prefill, slack_s, rested, most)


def linear(tight: Sequence[Seat], limit_s: float, forlorn: Sequence[Seat] = ()) -> Callable[..., Outlook]:
    """Each row costs a tenth of a second, each prompt token a hundredth; tight rows need short steps."""

    def predict(seats: Sequence[Seat]) -> Outlook:
        step_s = sum(0.1 + 0.01 * each.prefill for each in seats)
        missing = {each.row: 1.0 - limit_s / step_s for each in tight if step_s > limit_s + 1e-9}
        missing |= {each.row: 0.9 for each in forlorn}
        return Outlook(step_s, missing, frozenset(each.row for each in forlorn))

    return predict


def test_nobody_rests_while_all_have_what_they_need() -> None:
    seats = [seat() for _ in range(5)]
    assert sit_out(seats, linear(seats[:1], 0.5)) == frozenset()
    assert sit_out(seats, linear([], 0.0)) == frozenset()


@pytest.mark.parametrize(("limit_s", "resting"), [(0.8, 2), (0.6, 4), (0.3, 7), (0.1, 9)])
def test_as_few_rest_as_will_do(limit_s: float, resting: int) -> None:
    seats = [seat() for _ in range(10)]
    found = sit_out(seats, linear(seats[:1], limit_s))
    assert resting - 1 <= len(found) <= resting
    assert 0 not in found


def test_the_most_relaxed_rest_first_and_prompts_before_rows_that_write() -> None:
    seats = [seat(-1.0), seat(5.0), seat(), seat(), seat(prefill=10), seat(50.0)]
    assert sit_out(seats, linear(seats[:1], 0.55)) == {4}
    assert sit_out(seats, linear(seats[:1], 0.3)) == {4, 2, 3}
    assert sit_out(seats, linear(seats[:1], 0.2)) == {4, 2, 3, 5}


def test_rows_take_turns() -> None:
    seats = [seat(-1.0), seat(rested=2), seat(rested=1), seat(rested=3)]
    assert sit_out(seats, linear(seats[:1], 0.3)) == {2}
    assert sit_out(seats, linear(seats[:1], 0.2)) == {2, 1}


def test_no_row_rests_longer_than_it_may_nor_without_slack() -> None:
    seats = [seat(-1.0), seat(rested=7), seat(rested=6), seat(0.3), seat(0.6)]
    assert sit_out(seats, linear(seats[:1], 0.1)) == {2, 4}


def test_nobody_rests_where_it_helps_nobody() -> None:
    seats = [seat(-1.0), *(seat() for _ in range(4))]
    helpless = Outlook(0.5, {seats[0].row: 0.4})
    assert sit_out(seats, lambda _: helpless) == frozenset()


def test_nobody_rests_for_the_hopeless() -> None:
    seats = [seat(-1.0), seat(-1.0), *(seat() for _ in range(4))]
    assert sit_out(seats, linear([], 0.1, forlorn=seats[:1])) == frozenset()


def test_the_hopeless_rest_before_all_others() -> None:
    seats = [seat(-1.0), seat(-1.0), *(seat() for _ in range(4))]
    assert sit_out(seats, linear(seats[1:2], 0.5, forlorn=seats[:1])) == {0}
    assert sit_out(seats, linear(seats[1:2], 0.4, forlorn=seats[:1])) == {0, 2}
    tired = [seat(-1.0, rested=7), *seats[1:]]
    assert sit_out(tired, linear(tired[1:2], 0.5, forlorn=tired[:1])) == {2}


def test_a_step_is_never_emptied_to_help_those_who_would_rest() -> None:
    """Without anybody nobody lacks anything; that is no reason to send all of them away."""
    seats = [seat(-1.0), seat(-1.0), seat()]

    def predict(some: Sequence[Seat]) -> Outlook:
        writing = [each.row for each in some]
        hopeless = frozenset(row for row in writing if row in (seats[0].row, seats[1].row))
        return Outlook(0.1 * len(some), dict.fromkeys(hopeless, 0.5), hopeless)

    assert sit_out(seats, predict) == frozenset()


def test_who_is_hopeless_only_because_of_the_others_gets_their_rest() -> None:
    seats = [seat(-1.0), *(seat() for _ in range(4))]

    def predict(some: Sequence[Seat]) -> Outlook:
        fits = len(some) <= 3
        here = seats[0].row
        return Outlook(
            0.1 * len(some), {} if fits else {here: 1.0}, frozenset() if fits else frozenset({here})
        )

    assert len(sit_out(seats, predict)) == 2


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            seat,
            st.sampled_from([-1.0, 0.2, 1.0, 5.0, math.inf]),
            st.integers(0, 8),
            st.sampled_from([0, 0, 8]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(0.05, 2.0),
)
def test_rests_are_allowed_bounded_and_as_short_as_possible(seats: list[Seat], limit_s: float) -> None:
    tight = [each for each in seats if each.slack_s < 0.0]
    predict = linear(tight, limit_s)
    found = sit_out(seats, predict)
    now = predict(seats)
    for i in found:
        assert seats[i].rested < seats[i].most
        assert seats[i].slack_s > now.step_s
        assert seats[i] not in tight
    assert len(found) < len(seats)
    assert bool(found) <= bool(now.missing)
