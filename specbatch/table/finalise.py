"""``results.parquet``: answers and pass-through columns put together in input order, memory bounded.

Rows finish in any order. Answers are first dealt into buckets of consecutive rows, each a temporary
file once it outgrows memory; then bucket after bucket is sorted, joined with its stretch of the
input and written. Memory is one bucket, whatever the size of the job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.errors import EngineError
from specbatch.table.atomic import replacing
from specbatch.table.keys import KeyFinder, Keys
from specbatch.table.parts import Parts, part_keys, read_parts
from specbatch.table.reader import InputTable
from specbatch.table.schema import KEY, output_schema, results_schema

_BUCKET_ROWS = 8192
_MAX_BUCKETS = 64
_IN_MEMORY_BYTES = 4 << 20


class Finaliser:
    """Writes the results of one run.

    Args:
        table: The input.
        keys: Of its rows.
        parts: Answers.
        footer: Entries for the Parquet footer.
        check: Called between batches; may raise to stop.
    """

    def __init__(
        self,
        table: InputTable,
        keys: Keys,
        parts: Parts,
        footer: Mapping[bytes, bytes],
        check: Callable[[], None],
    ) -> None:
        self._table, self._keys, self._parts = table, keys, parts
        self._footer, self._check = footer, check
        self._bucket_rows = max(_BUCKET_ROWS, -(-len(keys) // _MAX_BUCKETS))

    def write(self, path: Path, token_ids: bool) -> None:
        """Put the file in place in one piece.

        Raises:
            StorageError: The disk refused, or the input is not what it was; an earlier file stays as it was.
            EngineError: A row has no answer.
        """
        schema = results_schema(token_ids, self._table.carried).with_metadata(dict(self._footer))
        with ExitStack() as stack:
            # First, because it also speaks for a full disk under the buckets.
            sibling = stack.enter_context(replacing(path))
            buckets = self._deal(stack, path.parent)
            with pq.ParquetWriter(sibling, schema, compression="zstd", write_page_checksum=True) as writer:
                carried = _rechunk(self._table.carried_batches(), self._bucket_rows)
                for number, inputs in enumerate(carried):
                    self._check()
                    first = number * self._bucket_rows
                    answers = self._sorted(buckets[number], first, inputs.num_rows)
                    places = pa.array(self._table.places(first, inputs.num_rows))
                    writer.write_table(
                        _join(answers, inputs, places, schema), row_group_size=self._bucket_rows
                    )
                self._check()
                self._table.check_unchanged()

    def _deal(self, stack: ExitStack, directory: Path) -> list[IO[bytes]]:
        """Answers of the present input, each in the bucket of its row."""
        count = max(1, -(-len(self._keys) // self._bucket_rows))
        buckets = [stack.enter_context(_temporary(directory)) for _ in range(count)]
        finder = KeyFinder(self._keys)
        # Many small parts at a time: each write to a bucket costs the same however few rows it carries.
        for answers in _rechunk(_batches(self._parts), _BUCKET_ROWS):
            self._check()
            rows = finder.find(part_keys(answers))
            table = answers.drop_columns(["row_index"]).append_column("row_index", pa.array(rows))
            for number in np.unique(rows[rows >= 0] // self._bucket_rows):
                mine = np.flatnonzero((rows >= 0) & (rows // self._bucket_rows == number))
                with pa.ipc.new_stream(buckets[number], table.schema) as writer:
                    writer.write_table(table.take(mine))
        return buckets

    def _sorted(self, bucket: IO[bytes], first: int, count: int) -> pa.Table:
        """The bucket's answers in row order; of two for one row, the later written."""
        tables: list[pa.Table] = []
        end = bucket.tell()
        bucket.seek(0)
        while bucket.tell() < end:
            with pa.ipc.open_stream(bucket) as reader:
                tables.append(reader.read_all())
        latest = np.full(count, -1, np.int64)
        if tables:
            joined = pa.concat_tables(tables)
            latest[joined.column("row_index").to_numpy() - first] = np.arange(joined.num_rows)
        missing = int(np.count_nonzero(latest < 0))
        if missing:
            row = int(self._table.places(first + int(np.argmax(latest < 0)), 1)[0])
            raise EngineError(
                f"{missing} rows have no answer, the first is row {row}", "run the same command again"
            )
        return joined.take(latest)


def _batches(parts: Parts) -> Iterator[pa.RecordBatch]:
    for table in read_parts(parts):
        yield from table.to_batches()


def _temporary(directory: Path) -> IO[bytes]:
    """A file without a name; the caller closes it."""
    return tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(directory))


def _decoded(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Ids as text; bytes that are not UTF-8 become replacement characters (their row says so)."""
    try:
        return ids.cast(pa.large_string()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array(
            [[None if id_ is None else id_.decode(errors="replace") for id_ in ids.to_pylist()]]
        )


def _join(answers: pa.Table, inputs: pa.Table, rows: pa.Array, schema: pa.Schema) -> pa.Table:
    """Our columns, then the pass-through columns; messages get the row's number in front."""
    message = pc.binary_join_element_wise(
        pc.binary_join_element_wise("row", rows.cast(pa.string()), " "), answers.column("error_message"), ": "
    )
    ours = {name: answers.column(name) for name in answers.column_names if name != KEY}
    ours |= {"row_index": rows, "id": _decoded(inputs.column("id")), "error_message": message}
    names = [name for name in output_schema(token_ids=True).names if name in ours]
    columns = [ours[name] for name in names] + [inputs.column(name) for name in inputs.column_names[1:]]
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _rechunk(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of ``size`` rows, the last one shorter."""
    pending: list[pa.RecordBatch] = []
    held = 0
    schema: pa.Schema | None = None
    for batch in batches:
        schema = batch.schema
        rest = batch
        while held + rest.num_rows >= size:
            pending.append(rest.slice(0, size - held))
            yield pa.Table.from_batches(pending, schema)
            rest = rest.slice(size - held)
            pending, held = [], 0
        pending.append(rest)
        held += rest.num_rows
    if held:
        yield pa.Table.from_batches(pending, schema)
