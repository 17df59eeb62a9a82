"""``decisions.parquet``: what was decided about each row's speculation and promises, and why.

Entries are committed in parts of their own while the run goes on and put together at its end. They
hold numbers and words from fixed lists: no text, no token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specbatch.errors import StorageError
from specbatch.table.atomic import replacing
from specbatch.table.keys import KEY_BYTES, KeyFinder, Keys, as_keys

FILE, FOLDER = "decisions.parquet", "decisions"
_KEY = "key"
_FIELDS = (
    pa.field("row_index", pa.int64()),
    pa.field("attempt", pa.int32(), nullable=False),
    pa.field("event", pa.string(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("time_s", pa.float64(), nullable=False),
    pa.field("step", pa.int64(), nullable=False),
    pa.field("tier", pa.string()),
    pa.field("mode", pa.string()),
    pa.field("steps", pa.int64()),
    pa.field("needed", pa.float64()),
    pa.field("budget", pa.float64()),
    pa.field("drafted", pa.int64()),
    pa.field("slo_nodes", pa.int64()),
    pa.field("extra_nodes", pa.int64()),
    pa.field("expected", pa.float64()),
    pa.field("tokens", pa.int64()),
    pa.field("gain", pa.float64()),
    pa.field("real_gain", pa.float64()),
    pa.field("changes", pa.int64()),
    pa.field("fallbacks", pa.int64()),
    pa.field("watts", pa.float64()),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; what the columns mean is in :mod:`specbatch.table.meaning`.

    Attributes:
        key: Of the row, 32 hex digits; ``None`` for what concerns the whole run.
    """

    key: str | None
    event: str
    reason: str
    time_s: float
    step: int
    tier: str | None = None
    mode: str | None = None
    steps: int | None = None
    needed: float | None = None
    budget: float | None = None
    drafted: int | None = None
    slo_nodes: int | None = None
    extra_nodes: int | None = None
    expected: float | None = None
    tokens: int | None = None
    gain: float | None = None
    real_gain: float | None = None
    changes: int | None = None
    fallbacks: int | None = None
    watts: float | None = None


def decisions_schema() -> pa.Schema:
    """Columns of ``decisions.parquet``, in order."""
    return pa.schema(_FIELDS)


def _part_schema() -> pa.Schema:
    """Columns of a part: rows go by their keys, since another attempt may see another input."""
    return pa.schema([pa.field(_KEY, pa.binary(KEY_BYTES)), *_FIELDS[1:]])


class DecisionWriter:
    """Collects entries and commits them in files of their own.

    Args:
        directory: Of the parts; created when needed.
        stamp: Footer entries that prove whose part it is.
        attempt: Number of the attempt, from 1.
    """

    def __init__(self, directory: Path, stamp: Mapping[bytes, bytes], attempt: int) -> None:
        self._directory, self._stamp, self._attempt = directory, stamp, attempt
        self._pending: list[Entry] = []
        self._number = 0

    def add(self, entry: Entry) -> None:
        """Take an entry; it is safe after the next :meth:`flush`."""
        self._pending.append(entry)

    def __len__(self) -> int:
        """Entries that are not safe yet."""
        return len(self._pending)

    def flush(self) -> None:
        """Commit what was added.

        Raises:
            StorageError: The disk refused.
        """
        if not self._pending:
            return
        schema = _part_schema().with_metadata(dict(self._stamp))
        rows = [
            {
                **asdict(entry),
                _KEY: None if entry.key is None else bytes.fromhex(entry.key),
                "attempt": self._attempt,
            }
            for entry in self._pending
        ]
        table = pa.Table.from_pylist(rows, schema)
        try:
            self._directory.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._directory}: {error.strerror}", "check permissions") from error
        name = f"attempt-{self._attempt:04d}-{self._number:06d}.parquet"
        with replacing(self._directory / name) as sibling:
            pq.write_table(table, sibling, compression="zstd", write_page_checksum=True)
        self._number += 1
        self._pending.clear()


def write_decisions(
    directory: Path,
    keys: Keys,
    stamp: Mapping[bytes, bytes],
    footer: Mapping[bytes, bytes],
    places: NDArray[np.int64] | None = None,
) -> None:
    """Put ``decisions.parquet`` in place in one piece, part after part.

    Entries of rows that are not in the present input are left out.

    Args:
        directory: Of the run.
        keys: Of the present input's rows.
        stamp: Footer entries of this run's parts; others are ignored.
        footer: Entries for the file's own footer.
        places: Where the rows of these keys stand in the job; ``None`` is from 0 on.

    Raises:
        StorageError: A part cannot be read, or the disk refused.
    """
    schema = decisions_schema().with_metadata(dict(footer))
    finder = KeyFinder(keys)
    target = directory / FILE
    with replacing(target) as sibling, pq.ParquetWriter(sibling, schema, compression="zstd") as writer:
        for part in _parts(directory / FOLDER, stamp):
            writer.write_table(_with_row_index(part, finder, places).cast(schema))


def _parts(directory: Path, stamp: Mapping[bytes, bytes]) -> Iterator[pa.Table]:
    for path in sorted(directory.glob("attempt-*.parquet")) if directory.is_dir() else ():
        try:
            metadata = pq.read_schema(path).metadata or {}
            if any(metadata.get(name) != value for name, value in stamp.items()):
                continue
            table = pq.read_table(path, partitioning=None)
        except (OSError, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StorageError(f"{path}: cannot be read back: {reason}", "delete this file") from error
        if table.schema.equals(_part_schema()):
            yield table


def _with_row_index(part: pa.Table, finder: KeyFinder, places: NDArray[np.int64] | None) -> pa.Table:
    """Keys replaced by the rows that they belong to."""
    keys = part.column(_KEY).to_pylist()
    rows = finder.find(as_keys(b"".join(key or bytes(KEY_BYTES) for key in keys)))
    if places is not None:
        rows = np.where(rows < 0, rows, np.append(places, -1)[rows])
    found = [None if key is None else row for key, row in zip(keys, rows.tolist(), strict=True)]
    column = pa.array(found, pa.int64())
    named = part.set_column(0, _FIELDS[0], column)
    return named.filter(pa.array([row is None or row >= 0 for row in found], pa.bool_()))
