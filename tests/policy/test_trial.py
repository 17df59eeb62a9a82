"""Rows in a hurry get the benefit of the doubt for a while, and not for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specbatch.policy.forecast import FREE, Forecast
from specbatch.policy.trial import Trials, hoped
from specbatch.rows import Row
from tests.draft.rows_in_hand import make_row


def steps_of_hope(trials: Trials, row: Row, most: int = 100) -> int:
    """For how many steps in a row there is hope for a row."""
    for step in range(most):
        trials.step()
        if not trials.hopes(row):
            return step
    return most


def test_a_trial_ends_and_does_not_begin_again() -> None:
    trials, row = Trials(Forecast()), make_row([1], [2])
    assert 5 < steps_of_hope(trials, row) < 30
    assert steps_of_hope(trials, row) == 0


def test_trials_in_vain_become_rare_and_good_ones_do_not() -> None:
    forecast = Forecast()
    trials = Trials(forecast)
    in_vain = [steps_of_hope(trials, make_row([i], [2])) for i in range(12)]
    assert in_vain[0] > 0
    assert sum(steps > 0 for steps in in_vain) < 6
    for _ in range(1000):
        trials.step()
    for i in range(12):
        row = make_row([i], [2])
        forecast._observe_rows(FREE, [row], [0.9])
        assert steps_of_hope(trials, row) > 0


def test_a_row_that_leaves_is_forgotten() -> None:
    trials, row = Trials(Forecast()), make_row([1], [2])
    steps_of_hope(trials, row)
    trials.forget(row)
    assert steps_of_hope(trials, row) > 0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.integers(1, 8))
def test_hope_lowers_nothing_and_keeps_the_order(f: list[float], levels: int) -> None:
    table = np.array(sorted(f, reverse=True))
    better = hoped(table, levels)
    assert (better >= table).all()
    assert (np.diff(better) <= 0.0).all()
    assert (better[levels:] == table[levels:]).all()
