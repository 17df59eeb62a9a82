"""Row keys: what a row is, independent of where it stands.

A key is BLAKE2b over prompt and parameters, then over the occurrence number where the same row
comes more than once. Inserting, removing or reordering other rows changes no key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import SamplingParams

KEY_BYTES = 16

Keys = NDArray[np.void]
"""Array of 16-byte keys, dtype ``V16``, one per row."""

KEY_DTYPE = np.dtype(f"V{KEY_BYTES}")


def params_bytes(params: SamplingParams) -> bytes:
    """The parameters that shape the text, in one canonical spelling."""
    return json.dumps(astuple(params), separators=(",", ":")).encode()


def base_key(params: bytes, content: bytes) -> bytes:
    """Hash of one row before occurrences are told apart; ``params`` and ``content`` cannot run together."""
    digest = hashlib.blake2b(len(params).to_bytes(4, "little"), digest_size=KEY_BYTES)
    digest.update(params)
    digest.update(content)
    return digest.digest()


def number_occurrences(base: Keys) -> NDArray[np.int64]:
    """For each row, how many rows before it have the same base key: ``[N]`` → ``[N]``.

    Sorting instead of counting in a dictionary keeps the extra memory at a few bytes per row.
    """
    order, begins = _grouped(base)
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - begins
    return result


def first_occurrences(base: Keys) -> NDArray[np.int64]:
    """For each row, the first row with the same base key: ``[N]`` → ``[N]``."""
    order, begins = _grouped(base)
    result = np.empty(len(order), np.int64)
    result[order] = order[begins]
    return result


def number_occurrences_reference(base: Keys) -> NDArray[np.int64]:
    """Slow twin of :func:`number_occurrences`."""
    seen: dict[bytes, int] = {}
    result = []
    for key in base:
        result.append(seen.get(key.tobytes(), 0))
        seen[key.tobytes()] = result[-1] + 1
    return np.array(result, np.int64)


def final_keys(base: Keys) -> Keys:
    """Tell duplicates apart: later occurrences of a base key are hashed with their number."""
    keys = base.copy()
    occurrence = number_occurrences(base)
    for row in np.flatnonzero(occurrence):
        number = int(occurrence[row]).to_bytes(8, "little")
        keys[row] = np.void(hashlib.blake2b(base[row].tobytes() + number, digest_size=KEY_BYTES).digest())
    return keys


def key_hex(key: np.void) -> str:
    """The key as 32 hex digits, as rows and answers carry it."""
    return key.tobytes().hex()


class KeyFinder:
    """Finds rows by key.

    Args:
        keys: Of all rows, ``[N]``, without duplicates.
    """

    def __init__(self, keys: Keys) -> None:
        halves = _halves(keys)
        self._order = np.lexsort((halves[:, 1], halves[:, 0]))
        self._high, self._low = halves[self._order].T

    def find(self, wanted: Keys) -> NDArray[np.int64]:
        """Row of each wanted key, -1 where there is none: ``[M]`` → ``[M]``."""
        result = np.full(len(wanted), -1, np.int64)
        high, low = _halves(wanted).T
        places = np.searchsorted(self._high, high)
        open_ = np.arange(len(wanted))
        while len(open_):
            # One turn in practice: a second needs two keys with the same upper 64 bits.
            inside = open_[places[open_] < len(self._high)]
            open_ = inside[self._high[places[inside]] == high[inside]]
            hit = self._low[places[open_]] == low[open_]
            result[open_[hit]] = self._order[places[open_[hit]]]
            open_ = open_[~hit]
            places[open_] += 1
        return result


def as_keys(raw: bytes) -> Keys:
    """Concatenated 16-byte keys as an array ``[len(raw) / 16]``."""
    return np.frombuffer(raw, KEY_DTYPE)


def _halves(keys: Keys) -> NDArray[np.uint64]:
    """The keys as two integers each, ``[N, 2]``; neither ``V16`` nor ``S16`` can be sorted faithfully."""
    return np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 2)


def _grouped(base: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows ordered by key and then place, and where in that order each one's key begins: ``[N]`` each."""
    halves = _halves(base)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    ordered = halves[order]
    starts = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)][: len(order)]
    places = np.arange(len(order))
    return order, np.maximum.accumulate(np.where(starts, places, 0))
