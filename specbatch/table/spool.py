"""Random access to record batches without keeping them in memory.

The first pass over the input copies what a row needs at admission into a temporary file: Parquet
can only be read row group by row group, and the tightest row may be the last of a large one. Small
jobs never leave memory. The file has no name, so a killed process leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from specbatch.errors import StorageError

_IN_MEMORY_BYTES = 32 << 20
_SLICE_ROWS = 32
_CACHED_SLICES = 16


class Spool:
    """Rows appended in order, read in any order.

    Args:
        directory: Where the temporary file goes once it outgrows memory.
        in_memory_bytes: Size at which it does.
    """

    def __init__(self, directory: Path, in_memory_bytes: int = _IN_MEMORY_BYTES) -> None:
        # Closed by close(): the spool lives as long as the table, not as long as a block.
        self._file = tempfile.SpooledTemporaryFile(in_memory_bytes, dir=str(directory))  # noqa: SIM115
        self._starts: list[int] = []
        self._offsets: list[int] = [0]
        self._rows = 0
        self._cache: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._rows

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows at the end.

        Raises:
            StorageError: The temporary file cannot be written.
        """
        try:
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                part = batch.slice(start, _SLICE_ROWS)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, part.schema) as writer:
                    writer.write_batch(part)
                self._file.seek(0, 2)
                self._file.write(sink.getvalue())
                self._starts.append(self._rows)
                self._offsets.append(self._file.tell())
                self._rows += part.num_rows
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"cannot keep the prompts at hand: {error}", "free disk space, then resume"
            ) from error

    def row(self, index: int) -> pa.RecordBatch:
        """One row as a batch of length 1.

        Raises:
            IndexError: No such row.
        """
        if not 0 <= index < self._rows:
            raise IndexError(f"row {index} of {self._rows}")
        number = bisect_right(self._starts, index) - 1
        return self._slice(number).slice(index - self._starts[number], 1)

    def close(self) -> None:
        """Free the file."""
        # What a full disk kept from being written is of no use to anyone.
        with suppress(OSError):
            self._file.close()
        self._cache.clear()

    def _slice(self, number: int) -> pa.RecordBatch:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        start, end = self._offsets[number], self._offsets[number + 1]
        self._file.seek(start)
        with pa.ipc.open_stream(pa.py_buffer(self._file.read(end - start))) as reader:
            batch = reader.read_next_batch()
        self._cache[number] = batch
        if len(self._cache) > _CACHED_SLICES:
            self._cache.popitem(last=False)
        return batch
