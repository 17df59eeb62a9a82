"""How often texts go on as their matches did: counted while the job runs, by length of the match."""

from __future__ import annotations

from bisect import bisect_right

from specbatch.draft.occurrences import MAX_MATCH

_CEILING = 0.99
_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, MAX_MATCH)
"""Shortest match of each bucket."""
_PRIOR = (0.3, 0.4, 0.5, 0.6, 0.6, 0.65, 0.7, 0.75, 0.8, 0.8, 0.8, 0.85, 0.85, 0.9)
"""What is assumed of each bucket before anything was seen."""
_PRIOR_WEIGHT = 10.0
"""Observations that the assumption is worth."""


class Reliability:
    """Hit rates of matches.

    A hit is a committed token that followed one of the drafted occurrences. Where only part of the
    occurrences was drafted, that part of a trial counts.
    """

    def __init__(self) -> None:
        self._hits = [_PRIOR_WEIGHT * prior for prior in _PRIOR]
        self._trials = [_PRIOR_WEIGHT] * len(_PRIOR)

    def chance(self, length: int) -> float:
        """Probability that a text goes on as its matches of this length did, above 0 and below 1."""
        bucket = _bucket(length)
        return min(_CEILING, self._hits[bucket] / self._trials[bucket])

    def record(self, length: int, share: float, hit: bool) -> None:
        """A match of this length came to a test.

        Args:
            length: Of the match, tokens.
            share: Share of its occurrences that was drafted, 0 … 1.
            hit: Whether the text went on like one of those.
        """
        bucket = _bucket(length)
        self._hits[bucket] += hit
        self._trials[bucket] += share


def _bucket(length: int) -> int:
    return bisect_right(_BUCKETS, length) - 1
