"""Correction of predicted times while a run goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.hardware.corrected import CorrectedCosts
from specbatch.hardware.correction import LARGEST, WINDOW, PredictionError, StepCorrector
from tests.hardware.costs import pass_s, table

seconds = st.floats(1e-9, 1e9)
anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(st.lists(st.tuples(anything, anything), max_size=60))
def test_a_factor_is_bounded_whatever_is_observed(pairs: list[tuple[float, float]]) -> None:
    corrector = StepCorrector()
    for predicted, real in pairs:
        corrector.observe(predicted, real)
        assert 1 / LARGEST <= corrector.factor <= LARGEST


@settings(deadline=None)
@given(st.lists(seconds, min_size=WINDOW, max_size=40), st.floats(1 / LARGEST, LARGEST))
def test_a_constant_ratio_is_learnt(predicted: list[float], ratio: float) -> None:
    corrector = StepCorrector()
    for each in predicted:
        corrector.observe(each, ratio * each)
    assert corrector.factor == pytest.approx(ratio)


@settings(deadline=None)
@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(pairs: list[tuple[float, float]], unit: float) -> None:
    one, other = StepCorrector(), StepCorrector()
    for predicted, real in pairs:
        one.observe(predicted, real)
        other.observe(unit * predicted, unit * real)
    assert one.factor == pytest.approx(other.factor)


@settings(deadline=None)
@given(st.lists(st.floats(0.9, 1.1), min_size=WINDOW, max_size=WINDOW), st.integers(0, WINDOW // 2 - 1))
def test_less_than_half_of_the_steps_cannot_move_it_out_of_the_others(ratios: list[float], wild: int) -> None:
    corrector = StepCorrector()
    for i, ratio in enumerate(ratios):
        corrector.observe(1.0, 100.0 if i < wild else ratio)
    assert 0.9 <= corrector.factor <= 1.1


def test_a_change_of_speed_is_believed_after_half_a_window() -> None:
    corrector = StepCorrector()
    for _ in range(50):
        corrector.observe(1.0, 1.0)
    factors = []
    for _ in range(WINDOW):
        corrector.observe(1.0, 2.0)
        factors.append(corrector.factor)
    assert factors.index(2.0) == WINDOW // 2


def test_the_first_step_does_not_overrule_the_profile() -> None:
    corrector = StepCorrector()
    corrector.observe(1.0, 5.0)
    assert corrector.factor == 1.0


def test_faster_steps_are_believed_after_three() -> None:
    corrector = StepCorrector()
    for expected in (1.0, 1.0, 0.2, 0.2):
        corrector.observe(1.0, 0.2)
        assert corrector.factor == expected


def test_the_error_is_that_of_predictions_made_before_the_step() -> None:
    corrector = StepCorrector()
    for _ in range(20):
        corrector.observe(1.0, 2.0)
    error = corrector.error
    assert error is not None
    assert error.steps == 20
    assert error.median == 0.0
    assert error.p90 == 0.5  # of the first steps, before anything was learnt
    mixed = PredictionError.of([(1.0, 2.0), (3.0, 2.0), (2.5, 2.0)])
    assert mixed == PredictionError(steps=3, median=0.5, p90=0.5, bias=0.25)
    assert StepCorrector().error is None


def test_what_is_seen_of_drafts_comes_on_top_of_what_is_seen_of_passes() -> None:
    costs = CorrectedCosts(table())
    for _ in range(WINDOW):
        costs.observe_pass((16, 128.0, 4, 0), 2.0 * pass_s(16, 4, 128))
        costs.observe_draft((4, 4, 3), 0.5 * costs.table.draft_tree_s(4, 4, 3))
    plain = costs.table
    assert costs.verify_s(8, 64) == pytest.approx(2.0 * plain.verify_s(8, 64))
    assert costs.verify_curve(9, 64, 3).tolist() == pytest.approx(
        (2.0 * plain.verify_curve(9, 64, 3)).tolist()
    )
    assert costs.prefill_s(64) == pytest.approx(2.0 * plain.prefill_s(64))
    prompts = np.array([0, 64])
    assert costs.beside_s(prompts).tolist() == pytest.approx((2.0 * plain.beside_s(prompts)).tolist())
    assert costs.step_s(8, 64, 2, 64) == pytest.approx(2.0 * plain.step_s(8, 64, 2, 64))
    assert costs.draft_s(4, 4) == pytest.approx(0.5 * plain.draft_s(4, 4))
    assert costs.draft_tree_s(4, 4, 2) == pytest.approx(0.5 * plain.draft_tree_s(4, 4, 2))
    assert costs.drift == "passes took 2 times and drafts took 0.5 times"


def test_drafts_that_were_not_seen_are_as_slow_as_passes() -> None:
    costs = CorrectedCosts(table())
    assert costs.drift == ""
    for _ in range(WINDOW):
        costs.observe_pass((16, 128.0, 4, 0), 2.0 * pass_s(16, 4, 128))
    assert costs.draft_s(4, 4) == pytest.approx(2.0 * costs.table.draft_s(4, 4))


def test_a_draft_that_was_measured_far_too_slow_is_put_right_by_three() -> None:
    costs = CorrectedCosts(table())
    for _ in range(3):
        costs.observe_draft((1, 1, 2), costs.table.draft_tree_s(1, 1, 2) / 5)
    assert costs.draft_tree_s(1, 1, 2) == pytest.approx(costs.table.draft_tree_s(1, 1, 2) / 5)


def test_what_steps_take_besides_is_the_median_of_the_last_ones() -> None:
    costs = CorrectedCosts(table())
    assert costs.around_s == costs.table.around_s == 0.0
    for seconds in (1e-3, 2e-3, 9.0):
        costs.observe_around(seconds)
    assert costs.around_s == 2e-3
    for _ in range(WINDOW):
        costs.observe_around(3e-3)
    assert costs.around_s == 3e-3
