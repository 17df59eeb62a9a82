"""What a head drafter keeps of the target's features until its own entries are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.draft.base import Observed
from specbatch.rows import Row


@dataclass(slots=True)
class _Known:
    """Features of one row.

    Attributes:
        first: Position of the entry that the first features make, one behind the token they belong to.
        pieces: Features ``[n, F, hidden]`` one after another, for entries from ``first`` on.
        end: Position behind the last entry that can be made.
        stored: Entries from ``origin`` up to this position are in the head's store.
        origin: What stands before this position, the beginning of a page, the head does not see.
        passes: Passes that have been made for the row and not been charged to a draft yet.
        flops: Their operations.
    """

    first: int
    pieces: list[NDArray[np.float32]]
    end: int
    stored: int
    origin: int
    passes: int = 0
    flops: float = 0.0

    def joined(self) -> NDArray[np.float32]:
        """All features in one piece, which they are from then on."""
        if len(self.pieces) > 1:
            self.pieces = [np.concatenate(self.pieces)]
        return self.pieces[0]

    def add(self, features: NDArray[np.float32]) -> None:
        """Append features, without those of entries that are stored."""
        done = max(0, min(self.stored, self.end) - self.first)
        if done:
            self.pieces = [self.joined()[done:].copy()]
            self.first += done
        self.pieces.append(features)
        self.end += len(features)

    def drop_before(self, position: int) -> None:
        """Let go of the features of entries below a position, which are never made."""
        while self.first + len(self.pieces[0]) <= position:
            self.first += len(self.pieces.pop(0))
        self.pieces[0] = self.pieces[0][position - self.first :]
        self.first = self.stored = self.origin = position


class FeatureMemory:
    """Features of all rows, and of the last token of every page.

    The last ones serve rows that begin on shared pages: their first own entry needs the features of a
    token that another row computed.

    Args:
        num_pages: Pages of the target's store.
        page_size: Tokens in a page.
        shape: Captured layers and hidden size.
    """

    def __init__(self, num_pages: int, page_size: int, shape: tuple[int, int]) -> None:
        self._page_size = page_size
        self._known: dict[Row, _Known] = {}
        self._filled = np.zeros(num_pages, dtype=np.bool_)  # pages all of whose entries are stored
        self._tails = np.zeros((num_pages, *shape), dtype=np.float32)
        self._written = np.zeros(num_pages, dtype=np.bool_)  # pages with a tail
        assert math.prod(shape) > 0, "a head reads at least one layer"

    def clear(self) -> None:
        """Forget everything; only what was used of a memory that is mostly empty is touched."""
        self._known = {}
        self._filled[:] = False
        self._tails[self._written] = 0.0
        self._written[:] = False

    def add(self, observed: Observed) -> None:
        """Remember features of tokens the target has just stored."""
        if observed.features is None:
            return
        row, features = observed.row, observed.features
        known = self._known.get(row)
        if known is None or known.end != observed.first + 1:
            known = self._start(row, observed.first)
        known.add(features)
        for place in range(observed.first // self._page_size, row.cached // self._page_size):
            end = (place + 1) * self._page_size
            self._tails[row.pages[place]] = features[end - 1 - observed.first]
            self._written[row.pages[place]] = True
            self._filled[row.pages[place]] = known.origin < end <= known.stored

    def drop(self, row: Row) -> None:
        """Forget a row; unknown rows are fine."""
        self._known.pop(row, None)

    def covers(self, row: Row) -> bool:
        """Whether the entry of the row's last committed token can be made.

        It can for a row not observed yet, too, when all but its last token came with shared pages.
        """
        known = self._known.get(row)
        if known is None and 0 < row.cached == row.committed - 1 and row.cached % self._page_size == 0:
            known = self._start(row, row.cached)
        return known is not None and known.first < row.committed == known.end

    def backlog(self, row: Row) -> int:
        """Entries that could be in the store and are not."""
        known = self._known.get(row)
        return 0 if known is None else known.end - known.stored

    def prompt_waits(self, row: Row) -> bool:
        """Whether entries of the row's prompt are not in the store yet."""
        known = self._known.get(row)
        return known is not None and known.stored < len(row.prompt.token_ids)

    def ready(self, row: Row) -> tuple[int, int]:
        """First and end of the backlog but for its last entry, from which a tree may have to grow."""
        known = self._known[row]
        return known.stored, known.end - 1

    def origin(self, row: Row) -> int:
        """First position of the row that the head sees."""
        return self._known[row].origin

    def forgo(self, row: Row, most: int) -> None:
        """Of a backlog of more than twice as many entries, make about this many; the head sees no others."""
        if self.backlog(row) <= 2 * most:
            return
        known = self._known[row]
        position = (known.end - most) // self._page_size * self._page_size
        if position > known.stored:
            known.drop_before(position)

    def take(self, row: Row, first: int, end: int) -> tuple[list[int], NDArray[np.float32]]:
        """Tokens and features of entries ``first … end - 1``."""
        known = self._known[row]
        return row.tokens(first, end), known.joined()[first - known.first : end - known.first]

    def pending(self, row: Row) -> tuple[int, list[int], NDArray[np.float32]]:
        """First position, tokens and features of what is not stored, the last committed token's at least."""
        first = min(self._known[row].stored, row.committed - 1)
        return first, *self.take(row, first, row.committed)

    def mark_stored(self, row: Row, end: int | None = None) -> None:
        """Note that entries below ``end`` (all, by default) are stored, as far as the row's pages reach."""
        known, size = self._known[row], self._page_size
        before = max(known.origin, known.stored // size * size)
        known.stored = min(row.committed if end is None else end, len(row.pages) * size)
        self._filled[row.pages[before // size : known.stored // size]] = True

    def owe(self, row: Row, flops: float) -> None:
        """Note one pass that no draft has been charged for."""
        known = self._known[row]
        known.passes += 1
        known.flops += flops

    def settle(self, row: Row) -> tuple[int, float]:
        """Passes and operations owed by the row, which are then paid."""
        known = self._known[row]
        owed = known.passes, known.flops
        known.passes, known.flops = 0, 0.0
        return owed

    def _start(self, row: Row, first: int) -> _Known:
        """Begin with the entry at ``first``, and see the filled pages before it."""
        origin = first // self._page_size
        while origin and self._filled[row.pages[origin - 1]]:
            origin -= 1
        known = self._known[row] = _Known(
            first, [self._before(row, first)], first + 1, first, origin * self._page_size
        )
        return known

    def _before(self, row: Row, first: int) -> NDArray[np.float32]:
        """Features of the token before ``first``: ``[1, F, hidden]``, zeros where none are known."""
        if first > 0 and first % self._page_size == 0:
            page = row.pages[first // self._page_size - 1]
            tail = self._tails[page : page + 1].copy()
            if np.isfinite(tail).all():
                return tail
        return np.zeros((1, *self._tails.shape[1:]), dtype=np.float32)
