"""OpenAI batch files ↔ tables, streamed: memory does not grow with the file."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specbatch.errors import InputError
from specbatch.rows import FinishReason, Status
from specbatch.table.atomic import replacing
from specbatch.table.openai_request import SCHEMA, BadLineError, parse_request

_BATCH_ROWS = 1024
_SHOWN_FAULTS = 10
_RESULT_COLUMNS = (
    *("row_index", "id", "status", "error_code", "error_message", "finish_reason", "text"),
    *("prompt_tokens", "output_tokens", "cached_prompt_tokens", "arrival", "e2e_s"),
)


@dataclass(slots=True)
class Conversion:
    """What a conversion came to.

    Attributes:
        rows: Written.
        left_out: Fields that were not carried over → lines that have them.
        models: Values of ``body.model`` → lines, at most a few.
    """

    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)


def requests_to_table(source: Path, target: Path, drop_unsupported: bool = False) -> Conversion:
    """Translate a batch file of chat completion requests to an input table.

    Args:
        source: JSON lines.
        target: Parquet file; appears in one piece or not at all.
        drop_unsupported: Leave out fields that change the text and cannot be honoured.

    Raises:
        InputError: Lines cannot be translated; the first ten are named.
        StorageError: The table cannot be written.
    """
    done = Conversion()
    faults = _Faults(source)
    with _opened(source) as lines, replacing(target) as sibling:
        with pq.ParquetWriter(sibling, SCHEMA, compression="zstd") as writer:
            for rows in _in_batches(_rows(lines, faults, done, drop_unsupported)):
                writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                done.rows += len(rows)
        faults.verify(done.rows)
    return done


def results_to_responses(source: Path, target: Path) -> Conversion:
    """Translate ``results.parquet`` to a batch output file.

    Args:
        source: Results, or the run directory that holds them.
        target: JSON lines, in input order; appears in one piece or not at all.

    Raises:
        InputError: The file is not the results of a run.
        StorageError: The file cannot be written.
    """
    path = source / "results.parquet" if source.is_dir() else source
    done = Conversion()
    try:
        with pq.ParquetFile(path) as file, replacing(target) as sibling, sibling.open("wb") as sink:
            names = _result_columns(file.schema_arrow, path)
            run_id, model = _footer(file)
            for batch in file.iter_batches(_BATCH_ROWS, columns=names):
                for row in batch.to_pylist():
                    sink.write(_line(_response(row, run_id, model)))
                done.rows += batch.num_rows
    except (FileNotFoundError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = "name a run directory that is finished, or its results.parquet"
        raise InputError(f"{path}: not the results of a run: {reason}", hint) from None
    return done


class _Faults:
    """Collects what is wrong, to name many lines at once."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._first: list[str] = []
        self._number = 0
        self._hint = "correct the lines and convert again"
        self._ids = array("Q")
        self._lines = array("Q")

    def add(self, line: int, reason: str) -> None:
        self._number += 1
        if len(self._first) < _SHOWN_FAULTS:
            self._first.append(f"line {line}: {reason}")

    def add_unsupported(self, line: int, fields: tuple[str, ...]) -> None:
        self._hint = "remove them from the file, or leave them out with --drop-unsupported"
        self.add(line, f"{', '.join(fields)} not supported")

    def see(self, line: int, custom_id: object) -> None:
        """Remember an id, eight bytes each, to find those given twice."""
        digest = hashlib.blake2b(str(custom_id).encode(errors="surrogatepass"), digest_size=8).digest()
        self._ids.append(int.from_bytes(digest, "little"))
        self._lines.append(line)

    def verify(self, rows: int) -> None:
        """Raises ``InputError`` if there is anything to complain about."""
        for first, second in self._repeated():
            self.add(second, f"custom_id is that of line {first}")
        if self._number:
            more = self._number - len(self._first)
            listed = "; ".join(self._first) + (f"; and {more} more" if more else "")
            raise InputError(f"{self._source}: {self._number} bad lines: {listed}", self._hint)
        if not rows:
            raise InputError(f"{self._source}: no requests", "each line is one request")

    def _repeated(self) -> Iterator[tuple[int, int]]:
        ids = np.frombuffer(self._ids, np.uint64)
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        for place in again:
            yield self._lines[int(order[place])], self._lines[int(order[place + 1])]


def _opened(source: Path) -> BinaryIO:
    try:
        return source.open("rb")
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}", "name a readable .jsonl file") from None


def _rows(
    lines: BinaryIO, faults: _Faults, done: Conversion, drop_unsupported: bool
) -> Iterator[Mapping[str, object]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = parse_request(line)
        except BadLineError as error:
            faults.add(number, str(error))
            continue
        faults.see(number, request.row["id"])
        done.left_out.update(request.ignored)
        if request.unsupported and not drop_unsupported:
            faults.add_unsupported(number, request.unsupported)
            continue
        done.left_out.update(request.unsupported)
        model = request.row["model"]
        if model is not None and (len(done.models) < _SHOWN_FAULTS or model in done.models):
            done.models[str(model)] += 1
        yield request.row


def _in_batches(rows: Iterator[Mapping[str, object]]) -> Iterator[list[Mapping[str, object]]]:
    pending: list[Mapping[str, object]] = []
    for row in rows:
        pending.append(row)
        if len(pending) == _BATCH_ROWS:
            yield pending
            pending = []
    if pending:
        yield pending


def _result_columns(schema: pa.Schema, path: Path) -> list[str]:
    missing = [name for name in _RESULT_COLUMNS if name not in schema.names]
    if missing:
        raise InputError(
            f"{path}: not the results of a run: no column `{missing[0]}`",
            "name a run directory that is finished, or its results.parquet",
        )
    return list(_RESULT_COLUMNS)


def _footer(file: pq.ParquetFile) -> tuple[str, str | None]:
    """Run id and model of the run, as its results say."""
    footer = file.schema_arrow.metadata or {}
    config = json.loads(footer.get(b"specbatch.config", b"{}"))
    return footer.get(b"specbatch.run_id", b"").decode(), config.get("model")


def _response(row: Mapping[str, object], run_id: str, model: str | None) -> dict[str, object]:
    address = f"{run_id[:12]}-{row['row_index']}"
    custom_id = f"row-{row['row_index']}" if row["id"] is None else row["id"]
    line: dict[str, object] = {"id": f"batch_req_{address}", "custom_id": custom_id}
    if row["status"] not in (Status.OK.value, Status.TRUNCATED.value):
        error = {"code": row["error_code"] or row["status"], "message": row["error_message"]}
        return {**line, "response": None, "error": error}
    prompt, output = _count(row, "prompt_tokens"), _count(row, "output_tokens")
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": row["text"]},
        "logprobs": None,
        "finish_reason": row["finish_reason"] or FinishReason.STOP.value,
    }
    body = {
        "id": f"chatcmpl-{address}",
        "object": "chat.completion",
        "created": _finished(row),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": _count(row, "cached_prompt_tokens")},
        },
    }
    response = {"status_code": 200, "request_id": f"req_{address}", "body": body}
    return {**line, "response": response, "error": None}


def _count(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    return value if isinstance(value, int) else 0


def _finished(row: Mapping[str, object]) -> int:
    """Unix seconds at which the row ended."""
    arrival, seconds = row["arrival"], row["e2e_s"]
    start = arrival.timestamp() if isinstance(arrival, datetime) else 0.0
    return int(start + (seconds if isinstance(seconds, float) else 0.0))


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
