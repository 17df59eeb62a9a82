"""Monotone surfaces through measured points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.hardware.surface import FAR, Surface, isotonic

seconds = st.floats(1e-6, 1e3)
sizes = st.integers(1, 200)
points = st.dictionaries(st.tuples(sizes, sizes), seconds, min_size=1, max_size=30)
places = st.floats(1.0, 3e4)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=12))
def test_the_isotonic_fit_is_the_min_max_formula(values: list[float]) -> None:
    means = {
        (a, b): float(np.mean(values[a : b + 1])) for a in range(len(values)) for b in range(a, len(values))
    }
    expected = [
        max(min(means[a, b] for b in range(i, len(values))) for a in range(i + 1)) for i in range(len(values))
    ]
    assert isotonic(values) == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=20))
def test_what_rises_already_stays_as_it_is(values: list[float]) -> None:
    assert isotonic(sorted(values)) == pytest.approx(sorted(values))
    assert sum(isotonic(values)) == pytest.approx(sum(values))


def test_one_slow_outlier_does_not_lift_what_is_behind_it() -> None:
    clean = isotonic([1.0, 2.0, 3.0, 4.0, 5.0])
    dirty = isotonic([1.0, 9.0, 3.0, 4.0, 5.0])
    assert dirty[-1] < 9.0
    assert clean == [1.0, 2.0, 3.0, 4.0, 5.0]


@settings(deadline=None)
@given(points, st.lists(places, min_size=2, max_size=2), st.lists(places, min_size=2, max_size=2))
def test_a_surface_never_falls(
    measured: dict[tuple[int, int], float], x: list[float], y: list[float]
) -> None:
    surface = Surface.through(measured)
    lower = surface.at(min(x), min(y))
    upper = surface.at(max(x), max(y))
    assert 0.0 <= lower <= upper * (1 + 1e-9)
    assert np.isfinite(upper)


@settings(deadline=None)
@given(points, places)
def test_many_points_at_once_are_the_same_as_one_by_one(
    measured: dict[tuple[int, int], float], y: float
) -> None:
    surface = Surface.through(measured)
    xs = np.linspace(0.0, 250.0, 37)
    assert surface.along(xs, y).tolist() == pytest.approx([surface.at(x, y) for x in xs.tolist()], rel=1e-12)


@settings(deadline=None)
@given(
    st.sets(sizes, min_size=2, max_size=5),
    st.sets(sizes, min_size=2, max_size=5),
    st.tuples(seconds, seconds, seconds),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_bilinear_function_is_met_everywhere(
    xs: set[int], ys: set[int], slopes: tuple[float, float, float], share: tuple[float, float]
) -> None:
    def function(x: float, y: float) -> float:
        return slopes[0] + slopes[1] * x + slopes[2] * x * y

    surface = Surface.through({(x, y): function(x, y) for x in xs for y in ys})
    x = min(xs) + share[0] * (FAR * max(xs) - min(xs))
    y = min(ys) + share[1] * (FAR * max(ys) - min(ys))
    assert surface.at(x, y) == pytest.approx(function(x, y), rel=1e-6)


def test_before_the_first_point_it_is_constant() -> None:
    surface = Surface.through({(4, 64): 2.0, (8, 64): 3.0, (4, 128): 4.0, (8, 128): 6.0})
    assert surface.at(1, 10) == 2.0


def test_a_flat_end_is_not_flat_for_ever() -> None:
    surface = Surface.through({(1, 1): 1.0, (8, 1): 8.0, (16, 1): 8.0})
    assert surface.at(16, 1) == 8.0
    assert surface.at(32, 1) > 8.0


def test_a_single_first_size_grows_in_proportion_and_a_single_second_size_does_not_matter() -> None:
    surface = Surface.through({(4, 64): 2.0})
    assert surface.at(8, 64) == pytest.approx(4.0)
    assert surface.at(4, 4096) == 2.0


def test_what_was_not_measured_is_made_up_from_the_other_curve() -> None:
    full = {(x, 64): 10.0 + 2.0 * x for x in (1, 2, 4, 8, 16)}
    surface = Surface.through({**full, (4, 512): 10.0 + 2.0 * 4 + 3.0 * 4})
    assert surface.at(16, 512) == pytest.approx(10.0 + 2.0 * 16 + 3.0 * 16)
    assert surface.at(1, 512) == pytest.approx(10.0 + 2.0 + 3.0)


def test_nothing_makes_no_surface() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        Surface.through({})
