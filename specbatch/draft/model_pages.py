"""What a draft model has stored of every row, and of pages that rows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from specbatch.rows import Row

_ROOT = b""


@dataclass(slots=True)
class _Known:
    """One row: tokens stored, and the name of the last of its pages that is full."""

    stored: int = 0
    full: int = 0
    name: bytes = _ROOT


class StoredText:
    """Which committed tokens have keys and values in the draft model's store.

    The draft model uses the target's page numbers, but not its timing: it may have computed less of a
    page than the target has, or nothing. So full pages carry the name of the text up to their end (a
    hash), written when the last of their tokens is computed and taken away when one is overwritten.
    A row that begins on pages of others believes the names alone.

    Args:
        page_size: Tokens in a page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: dict[Row, _Known] = {}
        self._names: dict[int, bytes] = {}

    def stored(self, row: Row) -> int:
        """How many leading tokens of the row are stored; always fewer than it has."""
        known = self._known.get(row)
        if known is None:
            known = self._known[row] = self._found(row)
        return min(known.stored, row.committed - 1)

    def mark(self, row: Row, first: int, end: int) -> None:
        """Note that tokens ``first … end - 1`` have been computed; those beyond the row's pages are lost."""
        known, size = self._known[row], self._page_size
        end = min(end, len(row.pages) * size)
        for place in range(first // size, -(-end // size)):
            self._names.pop(row.pages[place], None)
        known.stored = max(end, 0)
        for place in range(known.full, end // size):
            known.name = _name(known.name, row.tokens(place * size, (place + 1) * size))
            self._names[row.pages[place]] = known.name
            known.full = place + 1

    def drop(self, row: Row) -> None:
        """Forget a row; unknown ones are fine."""
        self._known.pop(row, None)

    def distrust(self, row: Row) -> None:
        """Forget a row whose stored values are not to be used by anyone."""
        for page in row.pages:
            self._names.pop(page, None)
        self.drop(row)

    def _found(self, row: Row) -> _Known:
        """What others have stored of the row's text on the pages it shares with them."""
        known, size = _Known(), self._page_size
        for place in range(min(len(row.pages), row.committed // size)):
            name = _name(known.name, row.tokens(place * size, (place + 1) * size))
            if self._names.get(row.pages[place]) != name:
                break
            known.name, known.full = name, place + 1
        known.stored = known.full * size
        return known


def _name(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name of a page's text: its tokens and, through the parent, all tokens before them."""
    words = b"".join(token.to_bytes(4, "little") for token in tokens)
    return blake2b(parent + words, digest_size=16).digest()
