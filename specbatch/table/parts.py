"""Finished rows on disk: written in atomic parts, found again by key."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specbatch.errors import StorageError
from specbatch.rows import Answer
from specbatch.table.atomic import replacing
from specbatch.table.keys import KeyFinder, Keys, as_keys
from specbatch.table.schema import KEY, answers_to_batch, part_schema

_PATTERN = "part-*.parquet"


@dataclass(frozen=True, slots=True)
class PartFormat:
    """What all parts of a run have in common.

    Attributes:
        stamp: Footer entries that prove whose part it is.
        token_ids: Whether the column exists.
        epoch: Unix time of the run clock's zero, seconds.
        policy: Constant column.
        engine: Constant column.
    """

    stamp: Mapping[bytes, bytes]
    token_ids: bool
    epoch: float
    policy: str
    engine: str

    @property
    def schema(self) -> pa.Schema:
        """Columns and footer."""
        return part_schema(self.token_ids).with_metadata(dict(self.stamp))


class PartWriter:
    """Collects answers and commits them in files of their own.

    Args:
        directory: Of the parts; created when missing.
        form: Schema and stamp.
        flush_rows: Answers that make a commit due.
        flush_every_s: Seconds after which a commit is due.
    """

    def __init__(self, directory: Path, form: PartFormat, flush_rows: int, flush_every_s: float) -> None:
        self._directory, self._form = directory, form
        self._flush_rows, self._flush_every_s = flush_rows, flush_every_s
        self._pending: list[Answer] = []
        self._flushed_at = time.monotonic()
        self._number = _next_number(directory)
        self.committed = 0

    def add(self, answer: Answer) -> None:
        """Take an answer; it is safe after the next :meth:`flush`."""
        self._pending.append(answer)

    @property
    def due(self) -> bool:
        """Whether it is time to flush."""
        if not self._pending:
            return False
        late = time.monotonic() - self._flushed_at >= self._flush_every_s
        return late or len(self._pending) >= self._flush_rows

    def flush(self) -> None:
        """Commit what was added. After a failure the answers are kept and the next call tries again.

        Raises:
            StorageError: The disk refused.
        """
        self._flushed_at = time.monotonic()
        if not self._pending:
            return
        form = self._form
        batch = answers_to_batch(self._pending, form.schema, form.epoch, form.policy, form.engine)
        try:
            self._directory.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._directory}: {error.strerror}", "check permissions") from error
        with replacing(self._directory / f"part-{self._number:06d}.parquet") as sibling:
            pq.write_table(
                pa.Table.from_batches([batch]), sibling, compression="zstd", write_page_checksum=True
            )
        self.committed += len(self._pending)
        self._number += 1
        self._pending.clear()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that belong to a run, oldest first, and what else lies there.

    Attributes:
        trusted: Footer verified.
        ignored: Name and reason of the others.
    """

    trusted: tuple[Path, ...]
    ignored: tuple[str, ...]


def find_parts(directory: Path, form: PartFormat) -> Parts:
    """Verify every file in the folder by its footer."""
    trusted: list[Path] = []
    ignored: list[str] = []
    for path in sorted(directory.glob("*")) if directory.is_dir() else ():
        reason = _distrust(path, form)
        if reason is None:
            trusted.append(path)
        elif not path.name.startswith("."):
            ignored.append(f"{path.name}: {reason}")
    return Parts(tuple(trusted), tuple(ignored))


@dataclass(frozen=True, slots=True)
class Progress:
    """What earlier attempts finished of the present input.

    Attributes:
        done: Whether each row has an answer, bool ``[N]``.
        slo_met: Rows that kept their promises.
        slo_missed: Rows that did not.
    """

    done: NDArray[np.bool_]
    slo_met: int
    slo_missed: int


def read_progress(parts: Parts, keys: Keys) -> Progress:
    """Match finished rows with the present input by key.

    Raises:
        StorageError: A part cannot be read after all.
    """
    done = np.zeros(len(keys), np.bool_)
    met = missed = 0
    finder = KeyFinder(keys)
    for path in parts.trusted:
        table = _read(path, [KEY, "slo_met"])
        rows = finder.find(part_keys(table))
        fresh = (rows >= 0) & ~done[rows]
        done[rows[fresh]] = True
        kept = np.array(table.column("slo_met").to_pylist(), object)[fresh]
        met += int(np.count_nonzero(kept == True))  # noqa: E712 (null is neither)
        missed += int(np.count_nonzero(kept == False))  # noqa: E712
    return Progress(done, met, missed)


def read_parts(parts: Parts) -> Iterator[pa.Table]:
    """The content of all parts, oldest first.

    Raises:
        StorageError: A part cannot be read.
    """
    for path in parts.trusted:
        yield _read(path, None)


def part_keys(table: pa.Table) -> Keys:
    """Keys of a part's rows, ``[rows]``."""
    return as_keys(b"".join(table.column(KEY).to_pylist()))


def _read(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(
            f"{path}: cannot be read back: {reason}", "delete this file; its rows run again"
        ) from error


def _distrust(path: Path, form: PartFormat) -> str | None:
    """Why a file is not one of this run's parts; ``None`` when it is."""
    if not path.match(_PATTERN):
        return "not a part"
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return "damaged or incomplete"
    metadata = schema.metadata or {}
    if any(metadata.get(name) != value for name, value in form.stamp.items()):
        return "belongs to another run"
    if not schema.equals(form.schema):
        return "has other columns"
    return None


def _next_number(directory: Path) -> int:
    """One past the highest number in use, by trusted and untrusted files alike."""
    numbers = [path.stem.removeprefix("part-") for path in directory.glob(_PATTERN)]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=0)
