"""Who sits out: as few as help, the most relaxed first, nobody for the hopeless."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.policy.deferral import Floats, Integers, Seats, sit_out
from specbatch.policy.need import NONE, Need, Needs

ROW_S, PREFILL_S = 0.1, 0.01


@dataclass(frozen=True)
class Seat:
    """One row; ``limit_s`` is the longest step that brings it what it needs with its own token alone."""

    slack_s: float = math.inf
    limit_s: float | None = None
    turn: int = 0
    prefill: int = 0
    able: bool = True
    lost: bool = False

    @property
    def need(self) -> Need:
        if self.lost:
            return Need(lost=True)
        return NONE if self.limit_s is None else Need(((0.0, 1.0 / self.limit_s),))


def tight(limit_s: float, lost: bool = False) -> Seat:
    return Seat(-1.0, limit_s, lost=lost)


def length(tokens: Integers, prefill: Integers) -> Floats:
    seconds: Floats = ROW_S * tokens + PREFILL_S * prefill
    return seconds


def resting(seats: Sequence[Seat], drafts: Sequence[Sequence[float]] | None = None) -> frozenset[int]:
    """Who rests, if each row may expect so much more of its first, second, … drafted token."""
    own = Seats(
        tokens=np.array([int(not seat.prefill) for seat in seats]),
        prefill=np.array([seat.prefill for seat in seats]),
        needs=Needs([seat.need for seat in seats]),
        slack_s=np.array([seat.slack_s for seat in seats]),
        turn=np.array([seat.turn for seat in seats]),
        able=np.array([seat.able for seat in seats]),
    )
    offers = np.ones((len(seats), 1))
    if drafts is not None:
        gains = np.zeros((len(seats), max(map(len, drafts))))
        for i, gain in enumerate(drafts):
            gains[i, : len(gain)] = gain
        offers = np.concatenate([offers, gains], axis=1).cumsum(axis=1)
    return sit_out(own, offers, length)


def test_nobody_rests_while_all_have_what_they_need() -> None:
    assert resting([tight(0.5), *[Seat()] * 4]) == frozenset()
    assert resting([Seat()] * 5) == frozenset()


@pytest.mark.parametrize(("limit_s", "count"), [(0.8, 2), (0.6, 4), (0.3, 7), (0.1, 9)])
def test_as_few_rest_as_will_do(limit_s: float, count: int) -> None:
    found = resting([tight(limit_s), *[Seat()] * 9])
    assert len(found) == count
    assert 0 not in found


def test_the_most_relaxed_rest_first_and_rows_that_write_before_prompts() -> None:
    """Prompts that wait would keep the batch small for longer than they cost time."""
    seats = [Seat(1.0), Seat(), Seat(), Seat(prefill=10), Seat(2.0)]
    assert resting([tight(0.55), *seats]) == {2}
    assert resting([tight(0.3), *seats]) == {2, 3, 4}
    assert resting([tight(0.2), *seats]) == {2, 3, 4, 5}


def test_among_equals_the_lowest_turn_rests_first() -> None:
    seats = [Seat(turn=2), Seat(turn=1), Seat(turn=3)]
    assert resting([tight(0.3), *seats]) == {2}
    assert resting([tight(0.2), *seats]) == {2, 1}


def test_a_promise_with_time_enough_is_as_relaxed_as_none() -> None:
    """Whoever has least left to write rests: the others would be the last ones, in small steps."""
    seats = [Seat(turn=2), Seat(50.0, turn=1), Seat(turn=3)]
    assert resting([tight(0.3), *seats]) == {2}
    assert resting([tight(0.2), *seats]) == {2, 1}


def test_no_row_rests_longer_than_it_may_nor_without_slack() -> None:
    assert resting([tight(0.3), Seat(able=False), Seat(), Seat(0.3), Seat(0.6)]) == {2, 4}


def test_a_row_that_needs_more_than_its_token_does_not_rest_for_others() -> None:
    assert resting([tight(0.2), Seat(math.inf, 0.25), Seat()]) == {2}


def test_nobody_rests_where_it_helps_nobody() -> None:
    assert resting([tight(0.3), *[Seat(able=False)] * 4]) == frozenset()


def test_nobody_rests_for_the_hopeless() -> None:
    assert resting([tight(0.05), *[Seat()] * 4]) == frozenset()
    assert resting([tight(0.3, lost=True), *[Seat()] * 4]) == frozenset()


def test_the_hopeless_rest_before_all_others() -> None:
    seats = [tight(0.3, lost=True), tight(0.5), *[Seat()] * 4]
    assert resting(seats) == {0}
    assert resting([seats[0], tight(0.4), *seats[2:]]) == {0, 2}
    assert resting([Seat(-1.0, 0.3, able=False, lost=True), *seats[1:]]) == {2}


def test_a_step_is_never_emptied_to_help_those_who_would_rest() -> None:
    """Without anybody nobody lacks anything; that is no reason to send all of them away."""
    assert resting([tight(0.05), tight(0.05), Seat()]) == frozenset()
    assert resting([tight(0.05, lost=True), tight(0.05, lost=True), Seat()]) == frozenset()


def test_who_is_hopeless_only_because_of_the_others_gets_their_rest() -> None:
    """The whole step is too long for it whatever it drafts; the shortest one is not."""
    assert len(resting([tight(0.3), *[Seat()] * 9], [[0.5], *[[]] * 9])) > 0


def test_drafted_tokens_spare_others_the_rest() -> None:
    """2 tokens from 0.1 s more than the others take: as long a step as 1 token in half the time."""
    seats = [tight(0.4), *[Seat()] * 6]
    assert len(resting(seats)) == 3
    assert resting(seats, [[1.0], *[[]] * 6]) == frozenset()
    assert len(resting([tight(0.3), *seats[1:]], [[1.0], *[[]] * 6])) == 2


def test_drafted_tokens_that_bring_little_are_no_reason_to_keep_everybody() -> None:
    assert len(resting([tight(0.4), *[Seat()] * 6], [[0.01], *[[]] * 6])) == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            Seat,
            st.sampled_from([-1.0, 0.2, 1.0, 5.0, math.inf]),
            st.sampled_from([None, None, 0.1, 0.5, 2.0]),
            st.integers(0, 8),
            st.just(0),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_rests_are_allowed_and_help(seats: list[Seat], data: st.DataObject) -> None:
    drafts = [data.draw(st.lists(st.floats(0.0, 1.0), max_size=3)) for _ in seats]
    found = resting(seats, drafts)
    step_s = ROW_S * len(seats)
    missing = {i for i, seat in enumerate(seats) if seat.lost or seat.need.at(step_s) > 1.0}
    assert len(found) < len(seats)
    assert bool(found) <= bool(missing)
    for i in found:
        assert seats[i].able
        assert i in missing or seats[i].slack_s > step_s
    if found:
        helped = [i for i in missing - found if not seats[i].lost]
        assert helped, "somebody is in need of it"


def test_who_can_only_be_saved_by_good_drafts_has_the_machine_to_itself() -> None:
    """Two tokens in the time of five seats are enough on average; but who knows what comes next."""
    seats = [tight(0.12), *[Seat()] * 4]
    assert resting(seats, [[1.0, 1.0, 1.0, 1.0, 1.0], *[[]] * 4]) == {1, 2, 3, 4}
    assert len(resting([tight(0.2), *seats[1:]], [[1.0, 1.0, 1.0], *[[]] * 4])) < 4


def test_a_bad_forecast_is_no_reason_to_give_a_row_up() -> None:
    seats = [tight(0.08), *[Seat()] * 4]
    assert resting(seats, [[0.0], *[[]] * 4]) != frozenset()
    assert resting([tight(0.05), *seats[1:]], [[0.0], *[[]] * 4]) == frozenset()
