"""Finished rows on disk: written in atomic parts, found again by key."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specbatch.errors import StorageError
from specbatch.rows import Answer, Status
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
        picked: Places of a shard's rows in the job, ``[rows]``; ``None``: it has all rows.

    Attributes:
        committed: Rows that are safe.
        answered: Those of them with a text.
    """

    def __init__(
        self,
        directory: Path,
        form: PartFormat,
        flush_rows: int,
        flush_every_s: float,
        picked: NDArray[np.int64] | None = None,
    ) -> None:
        self._directory, self._form, self._picked = directory, form, picked
        self._flush_rows, self._flush_every_s = flush_rows, flush_every_s
        self._pending: list[Answer] = []
        self._flushed_at = time.monotonic()
        self._number = next_number(directory)
        self.committed = self.answered = 0

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
        batch = answers_to_batch(
            self._pending, form.schema, form.epoch, form.policy, form.engine, self._picked
        )
        write_part(self._directory, self._number, pa.Table.from_batches([batch]))
        self.committed += len(self._pending)
        self.answered += sum(answer.succeeded for answer in self._pending)
        self._number += 1
        self._pending.clear()


def write_part(directory: Path, number: int, table: pa.Table) -> None:
    """Put one part in place.

    Raises:
        StorageError: The disk refused.
    """
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}", "check permissions") from error
    with replacing(directory / f"part-{number:06d}.parquet") as sibling:
        pq.write_table(table, sibling, compression="zstd", write_page_checksum=True)


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
        failed: Rows whose answer is not a text.
        slo_met: Rows that kept their promises.
        slo_missed: Rows that did not.
        strangers: Answers of rows that are not in the present input.
    """

    done: NDArray[np.bool_]
    failed: int
    slo_met: int
    slo_missed: int
    strangers: int


_NOTHING, _MISSED, _MET = 0, 1, 2


def read_progress(parts: Parts, keys: Keys, *, retry_failed: bool = False) -> Progress:
    """Match finished rows with the present input by key; of two answers for a row, the later counts.

    Args:
        parts: Of the run.
        keys: Of the present input, ``[N]``.
        retry_failed: Take rows that failed as not done.

    Raises:
        StorageError: A part cannot be read after all.
    """
    done = np.zeros(len(keys), np.bool_)
    failed = np.zeros(len(keys), np.bool_)
    slo = np.full(len(keys), _NOTHING, np.int8)
    strangers = 0
    finder = KeyFinder(keys)
    for path in parts.trusted:
        table = _read(path, [KEY, "status", "slo_met"])
        rows = finder.find(part_keys(table))
        here = rows >= 0
        strangers += int(np.count_nonzero(~here))
        done[rows[here]] = True
        failed[rows[here]] = ~succeeded(table)[here]
        kept = pc.fill_null(pc.add(table.column("slo_met").cast(pa.int8()), _MISSED), _NOTHING)
        slo[rows[here]] = kept.to_numpy()[here]
    if retry_failed:
        done &= ~failed
        failed &= done
    slo[~done] = _NOTHING
    counts = np.bincount(slo, minlength=3)
    return Progress(done, int(failed.sum()), int(counts[_MET]), int(counts[_MISSED]), strangers)


def succeeded(table: pa.Table) -> NDArray[np.bool_]:
    """Which rows of a part have a text, ``[rows]``."""
    texts = pa.array([Status.OK.value, Status.TRUNCATED.value])
    mask: NDArray[np.bool_] = pc.is_in(table.column("status"), value_set=texts).to_numpy()
    return mask


def read_parts(parts: Parts, *, newest_first: bool = False) -> Iterator[pa.Table]:
    """The content of all parts, oldest first unless told otherwise.

    Raises:
        StorageError: A part cannot be read.
    """
    for path in reversed(parts.trusted) if newest_first else parts.trusted:
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


def next_number(directory: Path) -> int:
    """One past the highest number in use, by trusted and untrusted files alike."""
    numbers = [path.stem.removeprefix("part-") for path in directory.glob(_PATTERN)]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=0)
