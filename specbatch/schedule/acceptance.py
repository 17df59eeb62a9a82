"""What share of drafted tokens was accepted lately: of everybody's, and of each row's."""

from __future__ import annotations

from specbatch.rows import Row

_ACCEPTED, _TRIED = 12.0, 16.0
"""Drafted tokens that are taken to have been accepted, and of how many, before anything was seen."""

AT_FIRST = _ACCEPTED / _TRIED
"""The share that everybody has then."""

_MEMORY = 0.99
"""What is left of an older draft for each one that follows."""

_OWN_MEMORY = 0.9

_ENOUGH = 4.0
"""Drafted tokens that a row must have had tried lately to be judged by its own."""


class Acceptance:
    """Shares of the tokens that were tried: behind the first that is rejected nothing is."""

    def __init__(self) -> None:
        self._all = (_ACCEPTED, _TRIED)
        self._own: dict[Row, tuple[float, float]] = {}

    def learn(self, row: Row, drafted: int, accepted: int) -> None:
        """See what became of a row's draft.

        Args:
            row: The row.
            drafted: Tokens that were verified, at least 1.
            accepted: How many of them the row followed.
        """
        tried = min(accepted + 1, drafted)
        self._all = _after(self._all, _MEMORY, accepted, tried)
        self._own[row] = _after(self._own.get(row, (0.0, 0.0)), _OWN_MEMORY, accepted, tried)

    def at_best(self, row: Row) -> float:
        """The row's own share or everybody's, whichever is higher."""
        (accepted, tried), (own, own_tried) = self._all, self._own.get(row, (0.0, 0.0))
        return max(accepted / tried, own / own_tried if own_tried >= _ENOUGH else 0.0)

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self._own.pop(row, None)


def _after(counts: tuple[float, float], memory: float, accepted: int, tried: int) -> tuple[float, float]:
    return memory * counts[0] + accepted, memory * counts[1] + tried
