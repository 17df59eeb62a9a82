"""Online correction of predicted times by observed ones, and how far off predictions were."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 15
"""Recent steps that count: a change of the machine's speed is believed after half of them."""

PRIOR = 4
"""Steps that the profile itself is worth in the beginning."""

BELIEVED = 3
"""Steps that must have been seen before the prior gives way to faster ones: a step may be slow by accident,
but not fast, so that fewer of those are proof enough."""

LARGEST = 8.0
"""A factor is never larger, nor smaller than its inverse."""

DRIFT = 1.5
"""From this factor on (or its inverse) the profile describes another machine than the present one."""

_KEPT = 4096


def drifted(factor: float) -> bool:
    """Whether times that need such a correction should be measured again."""
    return not 1.0 / DRIFT < factor < DRIFT


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far predicted times were from real ones.

    Attributes:
        steps: How many were compared; the latest ones.
        median: Of the relative error ``|predicted - real| / real``.
        p90: Of the same: one in ten steps was further off.
        bias: Median of ``predicted / real - 1``: positive when predictions are too long.
    """

    steps: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> PredictionError | None:
        """From pairs of predicted and real seconds, all positive; ``None`` without any."""
        signed = [predicted / real - 1.0 for predicted, real in pairs]
        if not signed:
            return None
        off = sorted(map(abs, signed))
        p90 = off[min(len(off) - 1, math.ceil(0.9 * len(off)) - 1)]
        return cls(len(signed), statistics.median(off), p90, statistics.median(signed))


class StepCorrector:
    """A factor for predicted times: the median of the last ratios of real to predicted time.

    The median is deaf to the odd step that another process got in the way of. It starts at 1, is slower to
    rise than to fall, and stays between ``1 / LARGEST`` and ``LARGEST``.

    Args:
        window: Ratios that count, at least 1.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._ratios: deque[float] = deque(maxlen=window)
        self._window = window
        self._prior = [1.0] * min(PRIOR, window)
        self._pairs: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._factor = 1.0

    @property
    def factor(self) -> float:
        """What predictions of the profile are to be multiplied by."""
        return self._factor

    @property
    def error(self) -> PredictionError | None:
        """Of the corrected predictions, each with the factor that was known before its step."""
        return PredictionError.of(self._pairs)

    def observe(self, predicted: float, real: float) -> None:
        """Learn from a step.

        Args:
            predicted: Seconds that the profile said, not corrected.
            real: Seconds that it took. A pair that is not of positive finite times (a clock that stood
                still) says nothing and is left out.
        """
        if not (0.0 < predicted < math.inf and 0.0 < real < math.inf):
            return
        self._pairs.append((self._factor * predicted, real))
        # Bounded before the division can overflow.
        self._ratios.append(min(max(real / max(predicted, real / LARGEST), 1.0 / LARGEST), LARGEST))
        prior = self._prior[: self._window - len(self._ratios)]
        self._factor = statistics.median([*prior, *self._ratios])
        if len(self._ratios) >= BELIEVED:
            self._factor = min(self._factor, statistics.median(self._ratios))
