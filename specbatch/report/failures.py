"""Which rows of a finished run failed, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.errors import StorageError
from specbatch.rows import Status

EXAMPLES = 3
COLUMNS = ("row_index", "id", "status", "error_code", "error_message", "output_tokens")
"""Columns of the results that this is computed from."""

_WITH_TEXT = (Status.OK.value, Status.TRUNCATED.value)


class FailedRow(TypedDict):
    """One of the first rows that failed for a reason; in an unfinished run, where it stood when it ended."""

    row_index: int | None
    id: str | None
    message: str | None


class Failure(TypedDict):
    """Rows that failed for one reason; ``first`` holds a few of them, in input order."""

    status: str
    code: str | None
    rows: int
    first: list[FailedRow]


def failures(results: Path, fail_on: Collection[str] = ()) -> list[Failure]:
    """Reasons of failure, the most frequent first.

    Args:
        results: ``results.parquet``; streamed, so that a million long messages need no memory.
        fail_on: Ends of rows with a text that the job counts as failures as well.

    Raises:
        StorageError: The file cannot be read.
    """
    try:
        with pq.ParquetFile(results) as file:
            return failures_among(file.iter_batches(columns=list(COLUMNS)), fail_on)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(results, error) from error


def failures_among(batches: Iterable[pa.RecordBatch], fail_on: Collection[str] = ()) -> list[Failure]:
    """The same of rows that come in batches with the columns ``COLUMNS``."""
    fine = pa.array([status for status in _WITH_TEXT if status not in fail_on], pa.string())
    found: dict[tuple[str, str | None], Failure] = {}
    for row in _failed_rows(batches, fine):
        reason = (row["status"], row["error_code"])
        entry = found.setdefault(reason, {"status": reason[0], "code": reason[1], "rows": 0, "first": []})
        entry["rows"] += 1
        if len(entry["first"]) < EXAMPLES:
            entry["first"].append({"row_index": row["row_index"], "id": row["id"], "message": _message(row)})
    return sorted(found.values(), key=lambda entry: -entry["rows"])


def unreadable(results: Path, error: Exception) -> StorageError:
    """About results that were written and cannot be read."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return StorageError(f"{results}: cannot be read back: {reason}", "delete it and run again")


def _failed_rows(batches: Iterable[pa.RecordBatch], fine: pa.Array) -> Iterator[Mapping[str, Any]]:
    for batch in batches:
        failed = pc.invert(pc.is_in(batch.column("status"), value_set=fine))
        yield from batch.filter(failed).to_pylist()


def _message(row: Mapping[str, Any]) -> str | None:
    if row["status"] == Status.TRUNCATED.value:
        return f"stopped at max_tokens = {row['output_tokens']}"
    message: str | None = row["error_message"]
    return message
