"""How long answers get: per tier, from those that have ended and those that have not.

Rows that end early are seen first, so a plain quantile of finished lengths is too short at the start of
a run. The product-limit estimator (Kaplan & Meier 1958, section 2) counts unfinished rows too: per bin
of lengths how many rows came that far, and how many of them ended there.
"""

from __future__ import annotations

from collections.abc import Callable

from specbatch.rows import Row

QUANTILE = 0.9
"""Share of rows that are meant to end within what is predicted."""

_BINS = 96
_LINEAR, _WIDTH, _GROWTH = 32, 4, 1.08
_ENDLESS = 2**62
_DOUBT = 8.0
"""Rows that are assumed to have passed each bin without an end, so that little evidence shortens nothing."""


def _make_edges() -> tuple[int, ...]:
    edges = [_WIDTH * bin_ for bin_ in range(_LINEAR + 1)]
    while len(edges) <= _BINS:
        edges.append(int(edges[-1] * _GROWTH) + 1)
    return tuple(edges)


EDGES = _make_edges()
"""Bin b holds lengths from ``EDGES[b]`` up to below ``EDGES[b + 1]``; the last one all longer ones."""


class LengthModel:
    """Remaining lengths of rows; bounded memory, no randomness.

    Args:
        quantile: Share of rows that are meant to end within the prediction.
        kind: Rows of one kind are taken to be alike; those of a tier unless told otherwise.
    """

    def __init__(
        self, quantile: float = QUANTILE, kind: Callable[[Row], str] = lambda row: row.prompt.tier
    ) -> None:
        self._quantile, self._kind = quantile, kind
        self._tiers: dict[str, _Tier] = {}
        self._counted: dict[Row, tuple[_Tier, int]] = {}  # where each row counts, and in how many bins

    def advance(self, row: Row) -> None:
        """See how far a row in flight has come; it counts for the tier that it began in."""
        tier, bin_ = self._counted.get(row) or (self._tiers.setdefault(self._kind(row), _Tier()), 0)
        while bin_ < _BINS and EDGES[bin_] <= len(row.output):
            tier.came[bin_] += 1
            bin_ += 1
        self._counted[row] = tier, bin_

    def ended(self, row: Row) -> None:
        """A row has left the engine; one that was cut off says only that its text is not shorter."""
        if row in self._counted:
            self.advance(row)
            tier, bins = self._counted.pop(row)
            if len(row.output) < row.prompt.params.max_tokens:
                tier.stop(bins - 1)

    def remaining(self, row: Row) -> int:
        """Tokens that the row will still write: as likely as asked for not more, never above its limit."""
        left = max(1, row.prompt.params.max_tokens - len(row.output))
        tier, bins = self._counted.get(row) or (self._tiers.get(self._kind(row)), 1)
        if tier is None:
            return left
        end = tier.end(bins - 1, self._quantile)
        return min(left, max(1, end - len(row.output)))


class _Tier:
    """Counts per bin: rows that came that far, and rows that ended there."""

    def __init__(self) -> None:
        self.came = [0] * _BINS
        self._stopped = [0] * _BINS
        self._ends: dict[int, int] = {}  # bin of a row's length → length it is predicted to end within

    def stop(self, bin_: int) -> None:
        """A row ended in this bin."""
        self._stopped[bin_] += 1
        self._ends.clear()

    def end(self, bin_: int, quantile: float) -> int:
        """Length within which a row that came to this bin ends; as of the last row that did."""
        if bin_ not in self._ends:
            surviving, last = 1.0, bin_
            while last < _BINS - 1 and surviving > 1.0 - quantile:
                surviving *= 1.0 - self._stopped[last] / (self.came[last] + _DOUBT)
                last += 1
            self._ends[bin_] = EDGES[last] if surviving <= 1.0 - quantile else _ENDLESS
        return self._ends[bin_]
