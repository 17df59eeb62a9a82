"""Waiting rows come out by promise, then tier, then age; late ones last or not at all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.schedule.waiting import Late, WaitingRows

Entry = tuple[float, float, int]  # arrival, deadline, priority


def waiting(entries: list[Entry], late: Late = "answer") -> WaitingRows:
    columns = list(zip(*entries, strict=True)) or [(), (), ()]
    return WaitingRows(
        np.arange(len(entries), dtype=np.int64),
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.float64),
        np.array(columns[2], dtype=np.int16),
        late,
    )


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
    st.lists(entries, max_size=25), st.lists(st.floats(0, 3), max_size=6), st.sampled_from(["answer", "drop"])
)
def test_every_row_comes_out_exactly_once_and_in_order(
    rows: list[Entry], pauses: list[float], late: Late
) -> None:
    queue = waiting(rows, late)
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
