"""Results of several runs as one table, streamed: shards woven together, whole runs one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.errors import InputError, StorageError
from specbatch.table.atomic import replacing
from specbatch.table.decisions import decisions_schema

_WINDOW_ROWS = 8192


def write_merged(
    sources: Sequence[Path], target: Path, footer: Mapping[bytes, bytes], rows_total: int | None
) -> None:
    """Put the results of several runs in place as one file, in one piece.

    Args:
        sources: Files ``results.parquet``.
        target: The merged one.
        footer: Entries for its footer.
        rows_total: Rows of the job of which the sources are shards; ``None``: they are whole runs, and
            their rows are numbered on.

    Raises:
        InputError: Columns differ, or shards overlap or leave rows out.
        StorageError: A source cannot be read, or the disk refused.
    """
    schema = _common_schema(sources).with_metadata(dict(footer))
    tables = _in_turn(sources) if rows_total is None else _woven(sources, rows_total)
    with (
        replacing(target) as sibling,
        pq.ParquetWriter(sibling, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for table in tables:
            writer.write_table(table.cast(schema), row_group_size=_WINDOW_ROWS)


def write_merged_decisions(
    sources: Sequence[tuple[Path, int, int]], target: Path, footer: Mapping[bytes, bytes]
) -> None:
    """Put decisions of several runs in place as one file, run after run.

    Args:
        sources: File, first row of the run in the merged table, attempts of the runs before it.
        target: The merged file.
        footer: Entries for its footer.

    Raises:
        StorageError: A source cannot be read, or the disk refused.
    """
    schema = decisions_schema().with_metadata(dict(footer))
    with replacing(target) as sibling, pq.ParquetWriter(sibling, schema, compression="zstd") as writer:
        for path, first_row, attempts in sources:
            for table in _batches(path):
                moved = _shifted(_shifted(table, "row_index", first_row), "attempt", attempts)
                writer.write_table(moved.cast(schema))


def count_rows(path: Path) -> int:
    """Rows of a Parquet file.

    Raises:
        StorageError: It cannot be read.
    """
    return int(_opened(path).metadata.num_rows)


def written_by(path: Path) -> str:
    """Id of the run that wrote a file; empty where it says none.

    Raises:
        StorageError: It cannot be read.
    """
    metadata = _opened(path).schema_arrow.metadata or {}
    return str(metadata.get(b"specbatch.run_id", b""), "utf-8", "replace")


class _Cursor:
    """Reads one file whose rows ascend, stretch by stretch."""

    def __init__(self, path: Path) -> None:
        self._batches = _batches(path)
        self._held: pa.Table | None = next(self._batches, None)

    def below(self, end: int) -> Iterator[pa.Table]:
        """The rows not taken yet whose ``row_index`` is smaller."""
        while self._held is not None:
            places = self._held.column("row_index").to_numpy()
            count = int(np.searchsorted(places, end))
            yield self._held.slice(0, count)
            if count < len(places):
                self._held = self._held.slice(count)
                return
            self._held = next(self._batches, None)


def _woven(sources: Sequence[Path], rows_total: int) -> Iterator[pa.Table]:
    """Shards in input order; every row must come exactly once."""
    cursors = [_Cursor(path) for path in sources]
    for first in range(0, max(rows_total, 1), _WINDOW_ROWS):
        end = min(first + _WINDOW_ROWS, rows_total)
        pieces = [piece for cursor in cursors for piece in cursor.below(end)]
        table = pa.concat_tables(pieces) if pieces else None
        places = np.zeros(0, np.int64) if table is None else table.column("row_index").to_numpy()
        counts = np.bincount(places - first, minlength=end - first) if len(places) else np.zeros(end - first)
        if (counts != 1).any():
            row = int(np.argmax(counts != 1))
            found = "no shard" if not counts[row] else f"{int(counts[row])} shards"
            raise InputError(
                f"row {first + row} is in {found}",
                "the shards read different versions of the table: run all of them again over one (--fresh)",
            )
        if table is not None:
            yield table.take(np.argsort(places, kind="stable"))


def _in_turn(sources: Sequence[Path]) -> Iterator[pa.Table]:
    """Whole runs; row numbers go on from run to run, in messages as well."""
    first = 0
    for path in sources:
        for table in _batches(path):
            moved = _shifted(table, "row_index", first)
            numbers = moved.column("row_index").cast(pa.string())
            old = moved.column("error_message")
            rest = pc.replace_substring_regex(old, pattern=r"^row \d+: ", replacement="")
            message = pc.binary_join_element_wise(
                pc.binary_join_element_wise("row", numbers, " "), rest, ": "
            )
            yield moved.set_column(moved.schema.get_field_index("error_message"), "error_message", message)
        first += count_rows(path)


def _shifted(table: pa.Table, name: str, by: int) -> pa.Table:
    place = table.schema.get_field_index(name)
    moved = pc.add(table.column(name), by).cast(table.schema.field(name).type)
    return table.set_column(place, table.schema.field(name), moved)


def _batches(path: Path) -> Iterator[pa.Table]:
    try:
        with _opened(path) as file:
            for batch in file.iter_batches(batch_size=_WINDOW_ROWS):
                yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StorageError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return StorageError(f"{path}: cannot be read: {reason}", "delete it and run that run's command again")


def _common_schema(sources: Sequence[Path]) -> pa.Schema:
    """The columns that all sources have."""
    first, *others = (_opened(path).schema_arrow.remove_metadata() for path in sources)
    for path, schema in zip(sources[1:], others, strict=True):
        if schema.equals(first):
            continue
        names = dict.fromkeys([*first.names, *schema.names])
        odd = next((name for name in names if _kind(first, name) != _kind(schema, name)), None)
        what = "the columns stand in another order" if odd is None else _odd(first, schema, odd, sources[0])
        raise InputError(f"{path}: {what}", "merge results of tables that are alike, by one version")
    return first


def _kind(schema: pa.Schema, name: str) -> str:
    if name not in schema.names:
        return "missing"
    field = schema.field(name)
    return str(field.type) if field.nullable else f"{field.type} not null"


def _odd(first: pa.Schema, other: pa.Schema, name: str, path: Path) -> str:
    return f"column `{name}` is {_kind(other, name)}, in {path} it is {_kind(first, name)}"
