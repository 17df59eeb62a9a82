"""Measured times over a grid of two sizes, made monotone, and what lies between the points.

A larger pass never costs less. Where measurements say so all the same they are noise, and the best
monotone fit is their isotonic regression: pools of adjacent violators are replaced by their mean. A
running maximum is monotone as well, but lifts everything behind one slow outlier; the mean does not.
Isotonic regression keeps an order that holds between whole curves (its value is
``max over a of min over b of mean(a … b)``, monotone in every input), so one regression along each axis
leaves the grid monotone along both.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAR = 64.0
"""How far beyond the last measured size the grid is continued, as a multiple of it."""


def isotonic(values: Sequence[float]) -> list[float]:
    """The nearest sequence in least squares that never falls (pool adjacent violators).

    Source: Ayer, Brunk, Ewing, Reid & Silverman 1955, Annals of Mathematical Statistics 26(4).
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = float(value), 1
        while pools and pools[-1][0] * count >= total * pools[-1][1]:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
    return list(itertools.chain.from_iterable([total / count] * count for total, count in pools))


@dataclass(frozen=True, eq=False)
class Surface:
    """A function of two sizes that never falls along either.

    Attributes:
        xs: First size of the grid, rising, float64 ``[X]``.
        ys: Second size, rising, float64 ``[Y]``.
        values: At the grid, never falling along either axis, float64 ``[Y, X]``.
    """

    xs: Floats
    ys: Floats
    values: Floats

    @classmethod
    def through(cls, points: Mapping[tuple[int, int], float]) -> Surface:
        """Fit measured points.

        Points that are missing from the grid are filled in. Behind the last point of an axis the
        function goes on in a straight line; before the first one it is constant. With a single first
        size it grows in proportion to it, with a single second size it does not depend on it.

        Args:
            points: (x, y) → value, not negative; sizes at least 1.

        Raises:
            ValueError: There is no point.
        """
        if not points:
            raise ValueError("a surface goes through at least one point")
        xs, ys = (np.array(sorted({point[axis] for point in points}), dtype=np.float64) for axis in (0, 1))
        filled = _filled(points, xs, ys)
        along_x = np.array([isotonic(row) for row in filled.tolist()])
        grid = np.array([isotonic(column) for column in along_x.T.tolist()]).T
        # Means of different pools are rounded differently; what is left is units in the last place.
        grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
        tall = _continued(ys, grid.T).T
        values = _continued(xs, tall, alone=tall[:, -1] / xs[-1])
        return cls(np.append(xs, FAR * xs[-1]), np.append(ys, FAR * ys[-1]), values)

    def along(self, xs: Floats, y: float) -> Floats:
        """Values at many first sizes and one second size; float64, of the shape of ``xs``."""
        k, share = _place(self._plain[1], y)
        below, above = self.values[k], self.values[k + 1]
        values: Floats = np.interp(xs, self.xs, below + share * (above - below))
        return values

    def at(self, x: float, y: float) -> float:
        """Value at one point; many times quicker than :meth:`along`, which is its twin."""
        xs, ys, values = self._plain
        i, across = _place(xs, x)
        k, up = _place(ys, y)
        below, above = values[k], values[k + 1]
        left = below[i] + up * (above[i] - below[i])
        right = below[i + 1] + up * (above[i + 1] - below[i + 1])
        return left + across * (right - left)

    @cached_property
    def _plain(self) -> tuple[list[float], list[float], list[list[float]]]:
        """The same as plain numbers."""
        return self.xs.tolist(), self.ys.tolist(), self.values.tolist()


def _place(grid: Sequence[float], at: float) -> tuple[int, float]:
    """Piece of a grid that a size lies in, and how far along it as a share; sizes outside lie at the ends."""
    k = min(max(bisect_right(grid, at) - 1, 0), len(grid) - 2)
    return k, min(max((at - grid[k]) / (grid[k + 1] - grid[k]), 0.0), 1.0)


def _filled(points: Mapping[tuple[int, int], float], xs: Floats, ys: Floats) -> Floats:
    """The whole grid ``[Y, X]``, what was not measured made up from what was.

    The curve with most points is completed along straight lines. The others differ from it by an amount
    that is interpolated between their points, and in proportion to x outside of them: extra keys to read
    cost the same for every token.
    """
    curves = [{x: value for (x, y), value in points.items() if y == level} for level in ys.tolist()]
    fullest = max(curves, key=len)
    known = np.array(sorted(fullest), dtype=np.float64)
    heights = np.array([fullest[int(x)] for x in known])
    base = np.interp(xs, known, heights) + _slope(known, heights) * np.maximum(0.0, xs - known[-1])
    grid = np.empty((len(ys), len(xs)))
    for index, curve in enumerate(curves):
        own = np.array(sorted(curve), dtype=np.float64)
        surplus = np.array([curve[int(x)] for x in own]) - np.interp(own, xs, base)
        outside = np.clip(xs, None, own[0]) / own[0] * np.clip(xs, own[-1], None) / own[-1]
        grid[index] = np.maximum(0.0, base + np.interp(xs, own, surplus) * outside)
    return grid


def _continued(at: Floats, grid: Floats, alone: Floats | None = None) -> Floats:
    """A monotone grid ``[other axis, this axis]`` with one far column more, monotone again.

    Args:
        at: Sizes of this axis.
        grid: Values.
        alone: Slopes ``[other axis]`` in case there is one size only; none by default.
    """
    slopes = np.array([_slope(at, row) for row in grid])
    if alone is not None and len(at) == 1:
        slopes = alone
    # The largest slope so far: lines that begin above one another must not cross.
    far = grid[:, -1] + np.maximum.accumulate(slopes) * (FAR - 1.0) * at[-1]
    return np.column_stack((grid, far))


def _slope(at: Floats, values: Floats) -> float:
    """Rise per unit behind the last point: of the last piece or of the whole, whichever is steeper.

    A flat last piece must not make everything behind it free. From a single point nothing is known.
    """
    if len(at) == 1:
        return 0.0
    whole = (values[-1] - values[0]) / (at[-1] - at[0])
    return float(max(whole, (values[-1] - values[-2]) / (at[-1] - at[-2]), 0.0))
