"""Waiting rows come out by promise, then tier, then age; late ones last or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specbatch.schedule.tier_queue import Late
from specbatch.schedule.urgency import Urgency
from specbatch.schedule.waiting import WaitingRows

Entry = tuple[float, float, int]  # arrival, deadline, priority


@dataclass
class Columns:
    rows: NDArray[np.int64]
    arrival: NDArray[np.float64]
    deadline: NDArray[np.float64]
    due: NDArray[np.float64]
    priority: NDArray[np.int16]
    tier: NDArray[np.int16]


def waiting(
    entries: list[Entry],
    late: Late = "answer",
    tiers: list[int] | None = None,
    max_wait: list[float | None] | None = None,
    first: dict[int, float] | None = None,
) -> WaitingRows:
    """Rows of some tiers (one, if not told otherwise); ``first`` says when first tokens fall due."""
    columns = list(zip(*entries, strict=True)) or [(), (), ()]
    deadline = np.array(columns[1], dtype=np.float64)
    due = deadline.copy()
    for row, time in (first or {}).items():
        due[row] = min(due[row], time)
    feed = Columns(
        np.arange(len(entries), dtype=np.int64),
        np.array(columns[0], dtype=np.float64),
        deadline,
        due,
        np.array(columns[2], dtype=np.int16),
        np.array(tiers or [0] * len(entries), dtype=np.int16),
    )
    return WaitingRows(feed, late, max_wait or [None])


def drain(queue: WaitingRows, now: float) -> list[int]:
    taken = []
    while queue.peek(now) is not None:
        taken.append(queue.take(now))
    return taken


def test_deadline_before_tier_before_age_before_input_order() -> None:
    queue = waiting([(0, math.inf, 1), (0, math.inf, 0), (0, 50, 9), (-5, math.inf, 1), (0, 40, 9)])
    assert drain(queue, 0.0) == [4, 2, 1, 3, 0]


def test_the_tightest_row_may_be_the_last() -> None:
    entries: list[Entry] = [(0, math.inf, 1)] * 1000
    assert waiting([*entries, (0, 5.0, 1)]).take(0.0) == 1000


def test_rows_do_not_exist_before_they_arrive() -> None:
    queue = waiting([(3.0, math.inf, 0), (0.0, math.inf, 5), (1.0, math.inf, 0)])
    assert drain(queue, 0.5) == [1]
    assert queue.next_arrival() == 1.0
    assert len(queue) == 2
    assert drain(queue, 3.0) == [2, 0]
    assert queue.next_arrival() is None


def test_late_rows_go_behind_every_feasible_row() -> None:
    queue = waiting([(0, 1.0, 0), (0, math.inf, 9), (0, 20.0, 9)])
    assert drain(queue, 2.0) == [2, 1, 0]


def test_dropped_rows_are_never_taken_and_each_expires_once() -> None:
    queue = waiting([(0, 1.0, 0), (0, math.inf, 9), (0.5, 1.5, 9)], "drop")
    assert queue.take_expired(2.0) == [0, 2]
    assert queue.take_expired(2.0) == []
    assert drain(queue, 2.0) == [1]


entries = st.tuples(
    st.sampled_from([-1.0, 0.0, 0.0, 1.0, 2.5]),
    st.sampled_from([0.5, 2.0, 7.0, math.inf]),
    st.integers(0, 2),
)


@given(
    st.lists(entries, max_size=25),
    st.lists(st.floats(0, 3), max_size=6),
    st.sampled_from(["answer", "drop"]),
    st.integers(1, 3),
)
def test_every_row_comes_out_exactly_once_and_in_order(
    rows: list[Entry], pauses: list[float], late: Late, tiers: int
) -> None:
    queue = waiting(rows, late, [i % tiers for i in range(len(rows))], [None] * tiers)
    now, seen, expired = 0.0, [], []
    for pause in [*pauses, 10.0]:
        now += pause
        expired += queue.take_expired(now)
        batch = drain(queue, now)
        feasible = [(rows[i][1] < now, rows[i][1], rows[i][2], rows[i][0], i) for i in batch]
        assert feasible == sorted(feasible)
        assert all(rows[i][0] <= now for i in batch)
        assert late == "answer" or all(rows[i][1] >= now for i in batch)
        seen += batch
    assert sorted(seen + expired) == list(range(len(rows)))
    assert len(queue) == 0


def test_taking_from_nothing_fails_loudly() -> None:
    with pytest.raises(IndexError):
        waiting([]).take(0.0)


def test_a_first_token_that_is_due_orders_rows_until_it_is_too_late_for_it() -> None:
    queue = waiting([(0, 50.0, 9), (0, math.inf, 9), (0, math.inf, 0)], first={1: 10.0})
    assert queue.peek(5.0) == Urgency(False, 10.0, 9, 0.0, 1)
    assert drain(queue, 11.0) == [0, 2, 1]


def test_whoever_has_waited_too_long_can_be_asked_for_oldest_first() -> None:
    entries: list[Entry] = [(0, 5.0, 0), (2.0, math.inf, 1), (1.0, math.inf, 1), (0, math.inf, 0)]
    queue = waiting(entries, tiers=[0, 1, 1, 0], max_wait=[None, 10.0])
    assert not queue.has_waited_too_long(10.9)
    assert queue.has_waited_too_long(12.5)
    assert [queue.take_oldest(12.5), queue.take_oldest(12.5)] == [2, 1]
    assert not queue.has_waited_too_long(99.0)
    assert sorted(drain(queue, 99.0)) == [0, 3]


def test_a_row_that_is_put_back_waits_under_its_new_claim_only() -> None:
    queue = waiting([(0, 20.0, 0), (0, 30.0, 0)], tiers=[0, 0], max_wait=[40.0, 40.0])
    assert queue.take(0.0) == 0
    queue.put_back(Urgency(False, 90.0, 5, 0.0, 0), tier=1, deadline=90.0)
    assert len(queue) == 2
    assert queue.tiers_waiting(0.0) == [0, 1]
    assert queue.peek(0.0, tier=1) == Urgency(False, 90.0, 5, 0.0, 0)
    assert queue.take_oldest(50.0) == 0, "it has not lost its age"
    queue.put_back(Urgency(False, 90.0, 5, 0.0, 0), tier=1, deadline=90.0)
    assert drain(queue, 60.0) == [0, 1], "row 1 is late by now"
    assert len(queue) == 0


def test_a_new_deadline_is_the_one_that_expires() -> None:
    queue = waiting([(0, 5.0, 0)], "drop")
    queue.take(0.0)
    queue.put_back(Urgency(False, 9.0, 0, 0.0, 0), tier=0, deadline=9.0)
    assert queue.take_expired(6.0) == []
    assert queue.take_expired(10.0) == [0]
