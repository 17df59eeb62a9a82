"""Joules of a step, learnt from readings of whole windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.energy.power_model import FIRST_WINDOWS, PowerModel


def step_s(tokens: int, drafted: int) -> float:
    return 0.01 + 0.002 * tokens + 0.0002 * drafted


coefficients = st.tuples(
    st.floats(10.0, 100.0), st.floats(0.0, 3.0), st.floats(0.01, 1.0), st.floats(0.001, 0.5)
)


@given(coefficients, st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=12, max_size=40))
def test_plans_like_the_measured_ones_are_predicted(
    real: tuple[float, float, float, float], plans: list[tuple[int, int]]
) -> None:
    model = PowerModel()
    a, b, c, d = real
    for tokens, drafted in plans:
        seconds = 20 * step_s(tokens, drafted)
        joules = a * seconds + 20 * (b + c * tokens + d * drafted)
        model.observe((seconds, 20, 20 * tokens, 20 * drafted), joules)
    assert model.is_known
    for tokens, drafted in plans[-5:]:
        seconds = step_s(tokens, drafted)
        found = model.joules(np.array([seconds]), np.array([float(tokens)]), float(drafted))
        assert found[0] == pytest.approx(a * seconds + b + c * tokens + d * drafted, rel=0.15)


def test_nothing_is_negative_and_nothing_is_known_in_the_beginning() -> None:
    model = PowerModel()
    for number in range(FIRST_WINDOWS):
        assert not model.is_known
        model.observe((0.5, 10, 10 * (1 + number), 0), 50.0 - 5.0 * number)  # less for more: noise
    assert model.is_known
    assert model.joules(np.array([0.05]), np.array([1000.0]), 0.0)[0] > 0.0
    model.observe((0.0, 0, 0, 0), 3.0)  # a clock that stood still says nothing
    assert np.isfinite(model.joules(np.array([0.05]), np.array([8.0]), 4.0)[0])
