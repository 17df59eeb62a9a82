"""When a choice that no promise asks for is weighed again."""

from __future__ import annotations

from collections.abc import Collection

from specbatch.policy.menu import NOTHING, Choice
from specbatch.policy.standing import Standing, differ
from specbatch.rows import Row

EVERY = 16
"""Steps after which a new choice is weighed again although nothing has changed."""

_LONGER, _SELDOM = 2, 4
"""Times as many once it has been found right again; and where nothing is drafted, which costs little."""

_NEWS = 3
"""It is weighed again once the drafts that were seen have become more by one in so many."""

_MANY = 4
"""Where nothing is drafted, the number of rows matters once it differs by more than one in so many."""


class Review:
    """Keeps in mind what was found, and for which numbers of rows nothing was worth drafting."""

    def __init__(self) -> None:
        self._choice, self._pause, self._news = NOTHING, EVERY, 0
        self._idle: dict[int, int] = {}  # number of rows for which nothing was found → step up to which

    def is_due(self, step: int, seen: int, standing: Standing, rows: Collection[Row]) -> bool:
        """Whether the choice was made too long ago, by too little knowledge, or for others.

        Args:
            step: Number of the step.
            seen: Drafts that were ever seen.
            standing: The choice.
            rows: That take part in the step.
        """
        if seen >= self._news:
            return True
        if standing.choice != NOTHING:
            return step >= standing.until or differ(standing.rows, rows)
        # Others in their places can be drafted no better, as far as is known; fewer rows perhaps.
        near = (until for n, until in self._idle.items() if _MANY * abs(len(rows) - n) <= n)
        return step >= max(near, default=0)

    def found(self, step: int, seen: int, choice: Choice, rows: Collection[Row]) -> int:
        """A choice was made; in which step it is weighed again.

        Args:
            step: Number of the step.
            seen: Drafts that were ever seen.
            choice: The choice.
            rows: That take part in the step.
        """
        longest = EVERY * (_SELDOM if choice == NOTHING else _LONGER)
        self._pause = min(2 * self._pause, longest) if choice == self._choice else EVERY
        if choice != self._choice or seen >= self._news:
            self._idle.clear()
        self._choice, self._news = choice, seen + 1 + seen // _NEWS
        if choice == NOTHING:
            self._idle[len(rows)] = step + self._pause
        return step + self._pause
