"""How far predicted acceptance is from what happened: Brier score and expected calibration error."""

from __future__ import annotations

import numpy as np

from specbatch.policy.forest import Floats, Integers

_SOURCES, _DEPTHS, _BINS = 4, 32, 10


class CalibrationError:
    """Sums over candidates that the target decided about, by who proposed them and by depth.

    Every prediction is compared before anything is learnt from its outcome.

    Args:
        drafter: Name of the drafter; of two, joined by a plus sign.
    """

    def __init__(self, drafter: str) -> None:
        first, _, second = drafter.partition("+")
        self._names = (drafter, first, second, drafter)
        shape = (_SOURCES * _DEPTHS,)
        self._totals = np.zeros((4, *shape))  # candidates, accepted, squared errors of both predictions
        self._bins = np.zeros((2, 3, *shape, _BINS))  # prediction × (candidates, predicted, accepted)

    def add(self, sources: Integers, depths: Integers, outcomes: tuple[Floats, Floats, Floats]) -> None:
        """Enter candidates.

        Args:
            sources: Who proposed each, int64 ``[k]``.
            depths: From 1 on, int64 ``[k]``.
            outcomes: What the drafter said, what was made of it, and 1 for accepted ones; ``[k]`` each.
        """
        reported, calibrated, hits = outcomes
        place = sources * _DEPTHS + np.minimum(depths, _DEPTHS) - 1
        ones = np.ones_like(hits)
        errors = (reported - hits) ** 2, (calibrated - hits) ** 2
        self._totals += [_summed(place, each, self._totals[0]) for each in (ones, hits, *errors)]
        for bins, predicted in zip(self._bins, (reported, calibrated), strict=True):
            at = place * _BINS + np.minimum((predicted * _BINS).astype(np.int64), _BINS - 1)
            bins[:] += [_summed(at, each, bins[0]) for each in (ones, predicted, hits)]

    def report(self) -> dict[str, object]:
        """By drafter and depth, and over all: candidates, accepted share, both predictions' errors.

        ``ece`` is the mean distance between predicted and accepted shares over ten bins (Naeini, Cooper
        & Hauskrecht 2015), ``brier`` the mean squared error; ``*_reported`` are those of the drafter's
        own probabilities.
        """
        seen = np.flatnonzero(self._totals[0])
        by_depth = [
            {"drafter": self._names[at // _DEPTHS], "depth": at % _DEPTHS + 1, **self._entry([at])}
            for at in seen.tolist()
        ]
        overall = self._entry(seen.tolist()) if len(seen) else {"candidates": 0}
        return {"overall": overall, "by_depth": by_depth}

    def _entry(self, places: list[int]) -> dict[str, float | int]:
        count, hits, raw, ours = self._totals[:, places].sum(axis=1).tolist()
        bins = self._bins[:, :, places].sum(axis=2)
        predicted = bins[:, 1].sum(axis=1) / count
        errors = np.abs(bins[:, 1] - bins[:, 2]).sum(axis=1) / count
        return {
            "candidates": int(count),
            "accepted": hits / count,
            "reported": float(predicted[0]),
            "calibrated": float(predicted[1]),
            "brier_reported": raw / count,
            "brier": ours / count,
            "ece_reported": float(errors[0]),
            "ece": float(errors[1]),
        }


def _summed(places: Integers, values: Floats, like: Floats) -> Floats:
    """Sums of values by place, in the shape of another array."""
    sums: Floats = np.bincount(places, values, minlength=like.size).astype(np.float64).reshape(like.shape)
    return sums
