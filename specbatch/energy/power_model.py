"""How many joules a step takes, learnt from the meter while the run goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FIRST_WINDOWS = 6
"""Readings from which on the model is used: more than it has coefficients."""

_MEMORY = 60.0
"""Readings that count; older ones fade."""

_SWEEPS, _RIDGE = 60, 1e-6


class PowerModel:
    """``joules = a · seconds + b · passes + c · tokens + d · drafted``, none of a … d below 0.

    Idle power, the weights that each pass reads, the work per token of the target, and that per token of
    the drafter. Least squares over the latest readings, by coordinate descent. What seconds explain as well
    as tokens do may end up with either: predictions for plans like those that were measured are the same.
    """

    def __init__(self) -> None:
        self._squares, self._products = np.zeros((4, 4)), np.zeros(4)
        self._weights: Floats = np.zeros(4)
        self._windows = 0

    @property
    def is_known(self) -> bool:
        """Whether there were enough readings."""
        return self._windows >= FIRST_WINDOWS

    def observe(self, work: tuple[float, int, int, int], joules: float) -> None:
        """Learn from a reading.

        Args:
            work: Seconds, target passes, tokens in them, and tokens drafted by a model meanwhile.
            joules: What they took.
        """
        seconds = work[0]
        if not seconds > 0.0:
            return
        # Per second, so that long windows count no more than short ones.
        features, watts = np.array(work, dtype=np.float64) / seconds, joules / seconds
        fade = 1.0 - 1.0 / _MEMORY
        self._squares = fade * self._squares + np.outer(features, features)
        self._products = fade * self._products + features * watts
        self._windows += 1
        self._fit()

    def joules(self, seconds: Floats, tokens: Floats, drafted: float) -> Floats:
        """Of single steps, float64 like ``seconds``.

        Args:
            seconds: Predicted length of each.
            tokens: In the target pass of each.
            drafted: Tokens that a draft model proposes in each.
        """
        a, b, c, d = self._weights.tolist()
        found: Floats = np.maximum(a * seconds + b + c * tokens + d * drafted, 1e-12)
        return found

    def _fit(self) -> None:
        scale = np.sqrt(np.maximum(np.diag(self._squares), 1e-30))
        squares = self._squares / np.outer(scale, scale) + _RIDGE * np.eye(4)
        products, weights = self._products / scale, self._weights * scale
        for _ in range(_SWEEPS):
            for i in range(4):
                rest = products[i] - squares[i] @ weights + squares[i, i] * weights[i]
                weights[i] = max(0.0, rest / squares[i, i])
        self._weights = weights / scale
