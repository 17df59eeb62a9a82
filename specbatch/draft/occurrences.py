"""Where a run of tokens occurred before: bounded text with hash chains, as in LZ77 compressors.

Every run of a few tokens hashes to a chain of the places where it ended, newest first (Deutsch 1996,
RFC 1951, section 4). Appending a token costs constant time, a lookup walks one chain, and when the text
is full the oldest documents are overwritten: entries that point to them are recognised by their age.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

END = -1
"""Stands before and behind every document; no token equals it."""

LONG_RUN = 8
"""Tokens in the longer of the two kinds of runs that have chains."""

MAX_MATCH = 32
"""Longest match that is told apart from longer ones, tokens."""

MAX_OCCURRENCES = 48
"""Most occurrences of a run that a lookup looks at, newest first."""

_FIRST_BUCKETS, _MORE_BUCKETS = 1 << 12, 8
"""Chains of an empty history of any size, and times as many each time there are more tokens than that."""

_MAX_WALK = 4 * MAX_OCCURRENCES  # other runs with the same hash are walked past, but not for ever


@dataclass(frozen=True, slots=True)
class Match:
    """Earlier places where the text stood as it stands now.

    Attributes:
        length: How many tokens before each place equal the last tokens of the context.
        places: Indices into :attr:`TokenHistory.text` of the tokens that followed, newest first;
            at least one.
    """

    length: int
    places: tuple[int, ...]


class TokenHistory:
    """Documents of tokens, the oldest of which make room for new ones.

    Args:
        capacity: Tokens kept, at least 1; about 40 bytes each, taken as they are used.
        min_match: Shortest match that a lookup reports, at least 1.

    Attributes:
        text: Tokens and ``END`` marks, int32; what follows a place of a :class:`Match` runs on to the
            next ``END``.
    """

    def __init__(self, capacity: int, min_match: int) -> None:
        if capacity < 1 or min_match < 1:
            raise ValueError(f"a history needs 1 token and matches of 1, got {capacity} and {min_match}")
        self._size = capacity + 2  # an END before and behind the text
        self._buckets = 1 << (capacity - 1).bit_length()  # when it is full
        self._mask = min(_FIRST_BUCKETS, self._buckets) - 1
        self._runs = (min_match, LONG_RUN) if min_match < LONG_RUN else (min_match,)
        self.text = array("i", [END]) * self._size
        self._heads = [_zeros(self._mask + 1) for _ in self._runs]  # hash → last end of such a run; 0: none
        self._older = [_zeros(self._size) for _ in self._runs]  # end → the end before it
        self._end = 1  # places are counted on for ever; a place's index is its remainder by the size

    def __len__(self) -> int:
        """Tokens ever appended, marks included."""
        return self._end - 1

    @property
    def num_bytes(self) -> int:
        """Memory held, whatever is in it."""
        tables = (*self._heads, *self._older)
        return len(self.text) * self.text.itemsize + sum(table.nbytes for table in tables)

    def append(self, token: int) -> None:
        """Add a token to the last document, which must not outgrow the capacity."""
        end, size, text = self._end, self._size, self.text
        if self._mask < end < self._buckets:
            self._spread()
        at = end % size
        for run, heads, older in zip(self._runs, self._heads, self._older, strict=True):
            # The runs that end before this token are known to be followed by something only now.
            if at > run:
                bucket = crc32(text[at - run : at]) & self._mask
                older[at] = heads[bucket]
                heads[bucket] = end
        text[at] = token
        text[at + 1] = END
        self._end = end + 1

    def add(self, context: Sequence[int], tokens: Sequence[int]) -> None:
        """Add a document; of one that is too long, its end.

        Args:
            context: What stood before it: found as part of a match, never as its continuation.
            tokens: The document.
        """
        room = self._size - 2
        tokens = tokens[-room:]
        context = context[max(0, len(context) + len(tokens) - room) :]
        self._start_document(len(context) + len(tokens))
        for token in context:
            self.text[self._end % self._size] = token
            self._end += 1
        for token in tokens:
            self.append(token)

    def tail(self, length: int) -> array[int]:
        """The last tokens, at most ``length`` of them, of a history that is one document by ``append``."""
        return self.text[max(1, self._end - length) : self._end]

    def find(self, context: array[int]) -> Match | None:
        """The longest match of the end of a text, among the newest occurrences of its last run.

        Args:
            context: The last tokens of the text, int32; ``MAX_MATCH`` of them are looked at.

        Returns:
            All looked-at occurrences of that length; ``None`` when none has ``min_match`` tokens.
        """
        for level in reversed(range(len(self._runs))):
            run = self._runs[level]
            if len(context) >= run:
                ends = self._ends(level, context[-run:])
                if ends:
                    return self._longest(run, ends, context)
        return None

    def _spread(self) -> None:
        """Have more buckets, each with the chain of the one that it was part of.

        Many empty ones from the beginning would lie on memory of their own, one by one: claiming that
        takes longer than everything else that is done with a token.
        """
        times = min(_MORE_BUCKETS, self._buckets // (self._mask + 1))
        self._mask = times * (self._mask + 1) - 1
        self._heads = [_copies(heads, times) for heads in self._heads]

    def _start_document(self, length: int) -> None:
        """Move to a place where the whole document fits without wrapping around."""
        size = self._size
        at = self._end % size
        if at + length + 1 >= size:  # with a mark on either side
            self._end += size - at
        self.text[self._end % size] = END
        self._end += 1

    def _ends(self, level: int, run: array[int]) -> list[int]:
        """Places behind earlier occurrences of a run, newest first."""
        size, text, older, length = self._size, self.text, self._older[level], len(run)
        oldest = self._end - size + length + 1  # overwritten text lies before
        found: list[int] = []
        end = self._heads[level][crc32(run) & self._mask]
        for _ in range(_MAX_WALK):
            if end < oldest or end == 0 or len(found) == MAX_OCCURRENCES:
                break
            at = end % size
            if text[at - length : at] == run:
                found.append(end)
            end = older[at]
        return found

    def _longest(self, length: int, ends: Iterable[int], context: array[int]) -> Match:
        """Extend occurrences of the last ``length`` tokens backwards; keep those that go furthest."""
        text, size = self.text, self._size
        oldest = self._end - size + 1
        longest = min(MAX_MATCH, len(context))
        last = context[-length:]
        places: list[int] = []
        for end in ends:
            at = end % size
            if text[at - length : at] != last or end - length < oldest:
                continue
            limit = min(longest, end - oldest)
            before = length
            while length < limit and text[at - length - 1] == context[-length - 1]:
                length += 1
            if length > before:
                places.clear()
                last = context[-length:]
            places.append(at)
        return Match(length, tuple(places))


def _copies(numbers: memoryview[int], times: int) -> memoryview[int]:
    """The numbers so many times, one after another."""
    return memoryview(np.tile(np.frombuffer(numbers, dtype=np.int64), times).data)


def _zeros(count: int) -> memoryview[int]:
    """int64 zeros that cost no memory until they are used; read and written as plain integers."""
    return memoryview(np.zeros(count, dtype=np.int64).data)


def find_reference(
    documents: Sequence[tuple[Sequence[int], Sequence[int]]], context: Sequence[int], min_match: int
) -> tuple[int, list[tuple[int, int]]]:
    """Slow twin of :meth:`TokenHistory.find` over documents that are all still there.

    Args:
        documents: As given to :meth:`TokenHistory.add`, oldest first.
        context: The last tokens of the text.
        min_match: Shortest match.

    Returns:
        Length of the longest match, and where (document, index behind its context) it was followed by
        a token, newest first; 0 and nothing where there is none.
    """
    for run in (LONG_RUN, min_match):
        ends = [
            (number, at)
            for number, (before, tokens) in reversed(list(enumerate(documents)))
            for at in reversed(range(len(tokens)))
            if len(context) >= run and _common([*before, *tokens[:at]], context) >= run
        ][:MAX_OCCURRENCES]
        if ends:
            lengths = [_common([*documents[n][0], *documents[n][1][:at]], context) for n, at in ends]
            longest = max(lengths)
            return longest, [end for end, length in zip(ends, lengths, strict=True) if length == longest]
    return 0, []


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common suffix, at most ``MAX_MATCH``."""
    length = 0
    while length < min(len(left), len(right), MAX_MATCH) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length
