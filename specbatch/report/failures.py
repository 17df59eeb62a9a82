"""Which rows of a finished run failed, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.rows import Status

EXAMPLES = 3
_COLUMNS = ("row_index", "id", "status", "error_code", "error_message")
_WITH_TEXT = (Status.OK.value, Status.TRUNCATED.value)


class FailedRow(TypedDict):
    """One of the first rows that failed for a reason."""

    row_index: int
    id: str | None
    message: str | None


class Failure(TypedDict):
    """Rows that failed for one reason; ``first`` holds a few of them, in input order."""

    status: str
    code: str | None
    rows: int
    first: list[FailedRow]


def failures(results: Path) -> list[Failure]:
    """Reasons of failure, the most frequent first.

    Args:
        results: ``results.parquet``; streamed, so that a million long messages need no memory.

    Raises:
        OSError: The file cannot be read.
        pyarrow.ArrowException: It is damaged.
    """
    found: dict[tuple[str, str | None], Failure] = {}
    with pq.ParquetFile(results) as file:
        for batch in file.iter_batches(columns=list(_COLUMNS)):
            failed = pc.invert(pc.is_in(batch.column("status"), value_set=pa.array(_WITH_TEXT)))
            for row in batch.filter(failed).to_pylist():
                reason = (row["status"], row["error_code"])
                entry = found.setdefault(
                    reason, {"status": reason[0], "code": reason[1], "rows": 0, "first": []}
                )
                entry["rows"] += 1
                if len(entry["first"]) < EXAMPLES:
                    entry["first"].append(
                        {"row_index": row["row_index"], "id": row["id"], "message": row["error_message"]}
                    )
    return sorted(found.values(), key=lambda entry: -entry["rows"])
