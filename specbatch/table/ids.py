"""Ids of rows: which row had one first, and in which file that is."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.errors import RowFault
from specbatch.table.keys import KEY_BYTES, Keys, as_keys, first_occurrences
from specbatch.table.parse import shown

_NO_ID = bytes(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Which rows of a job are in which file.

    Attributes:
        names: Of the files that have rows, in job order.
        starts: Job-wide index of the first row of each.
    """

    names: tuple[str, ...]
    starts: tuple[int, ...]

    def spelled(self, row: int) -> str:
        """A row in words, with its file where there are several: ``row 3 (in b.parquet)``."""
        if len(self.names) < 2:
            return f"row {row}"
        return f"row {row} (in {self.names[bisect_right(self.starts, row) - 1]})"


def duplicate_id(name: object, first: int, files: FilePlaces) -> RowFault:
    """What is wrong with a row whose id an earlier row has.

    Args:
        name: The id, as it is in the cell.
        first: Job-wide index of the row that had it first.
        files: Of the job.
    """
    message = (
        f"column `id`: {shown(name)} is the id of {files.spelled(first)} already; give every row its own"
    )
    return RowFault("duplicate_id", message)


def id_hashes(batch: pa.RecordBatch) -> Iterator[bytes]:
    """A key per row of canonical columns; zeros without an id."""
    if "id" not in batch.schema.names:
        yield bytes(KEY_BYTES * batch.num_rows)
        return
    for name in batch.column("id").to_pylist():
        yield _NO_ID if name is None else hashlib.blake2b(name, digest_size=KEY_BYTES).digest()


def first_with_id(ids: Keys) -> NDArray[np.int64]:
    """For each row the first one with its id, -1 where that is itself or it has none: ``[N]`` → ``[N]``."""
    result = np.full(len(ids), -1, np.int64)
    given = np.flatnonzero(ids != as_keys(_NO_ID)[0])
    first = given[first_occurrences(ids[given])]
    result[given] = np.where(first == given, -1, first)
    return result
