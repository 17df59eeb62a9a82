"""How often texts go on as their matches did: counted while the job runs, by length of the match."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specbatch.draft.occurrences import MAX_MATCH

_CEILING = 0.99
_PRIOR_WEIGHT = 10.0
"""Observations that an assumption is worth."""

_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, MAX_MATCH)
"""Shortest match of each bucket."""

OWN_TEXT: tuple[float, ...] = (
    *(0.45, 0.58, 0.65, 0.73, 0.76, 0.81, 0.84, 0.85),
    *(0.90, 0.92, 0.92, 0.94, 0.95, 0.97),
)
"""Hit rates of each bucket in a row's own prompt and output, before any are known: those of 85,000 tokens
of chat answers of SmolLM2-135M, greedy and at temperature 0.7 together."""

OTHER_OUTPUTS: tuple[float, ...] = (
    *(0.30, 0.37, 0.42, 0.47, 0.47, 0.52, 0.62, 0.75),
    *(0.77, 0.78, 0.80, 0.85, 0.85, 0.90),
)
"""Likewise in earlier outputs of a job: answers to unrelated questions, so rather too low than too high."""


class Reliability:
    """Hit rates of matches.

    A hit is a committed token that followed one of the drafted occurrences. Where only part of the
    occurrences was drafted, that part of a trial counts.

    Args:
        assumed: Hit rate of each bucket before anything was seen.
    """

    def __init__(self, assumed: Sequence[float]) -> None:
        self._hits = [_PRIOR_WEIGHT * rate for rate in assumed]
        self._trials = [_PRIOR_WEIGHT for _ in assumed]
        self.chances = [assumed[_bucket(max(1, length))] for length in range(MAX_MATCH + 1)]
        """Probability that a text goes on as its matches of a length did, by length; above 0, below 1."""

    def record(self, length: int, share: float, hit: bool) -> None:
        """A match came to a test.

        Args:
            length: Of the match, tokens.
            share: Share of its occurrences that was drafted, 0 … 1.
            hit: Whether the text went on like one of those.
        """
        bucket = _bucket(length)
        self._hits[bucket] += hit
        self._trials[bucket] += share
        chance = min(_CEILING, self._hits[bucket] / self._trials[bucket])
        end = _BUCKETS[bucket + 1] if bucket + 1 < len(_BUCKETS) else MAX_MATCH + 1
        self.chances[_BUCKETS[bucket] : end] = [chance] * (end - _BUCKETS[bucket])


def _bucket(length: int) -> int:
    return bisect_right(_BUCKETS, length) - 1
