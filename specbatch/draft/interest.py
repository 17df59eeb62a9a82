"""Whether rows draft at all, so that those who do not need not be made ready for it."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.draft.base import Observed

WINDOW = 32
"""About so many tokens before its first draft a row's drafts see where hardly anything is drafted.

Entries of all tokens take about a twentieth of the time of the target. Where drafts do not pay, nobody
should pay for being able to draft; a row that begins to draft late catches up with its latest tokens.
"""

_LIVELY = 0.3
"""Share of the rows that draft, below which the others are not made ready for it."""

_NEWS = 0.05
"""Weight of the last step in that share."""


class Interest:
    """The share of the rows that write which draft, lately; none in the beginning."""

    def __init__(self) -> None:
        self._share, self._asked = 0.0, 0

    @property
    def is_lively(self) -> bool:
        """Whether enough rows draft to make all ready for it."""
        return self._share >= _LIVELY

    def asked(self, rows: int) -> None:
        """So many rows draft in this step."""
        self._asked = rows

    def observe(self, observed: Sequence[Observed]) -> None:
        """A step ended."""
        writing = sum(item.first >= len(item.row.prompt.token_ids) for item in observed)
        if writing:
            self._share += _NEWS * (min(1.0, self._asked / writing) - self._share)
        self._asked = 0
