"""Shards: every n-th row in the order of deadlines, so that each has an equal mix of urgency.

Which rows a shard has depends on the table alone, not on when or where it is started: machines agree
without talking to each other. Keys are those of the whole job, so a row's text is the same in whatever
shard it is answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.config.places import Shard
from specbatch.table.index import RowIndex, schedule
from specbatch.table.manifest import ShardRecord
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool


class Stripes:
    """Sees the rows of the first pass, hands them on where anybody wants them, and deals them out.

    Deadlines are compared as the table has them: relative ones first, then moments. To count either from
    the start of the run would make the order depend on it.

    Args:
        parser: Of the job.
        spool: Receives the rows.
    """

    def __init__(self, parser: RowParser, spool: Spool | None = None) -> None:
        self._parser, self._spool = replace(parser, epoch=0.0, until=None), spool
        self._due: list[NDArray[np.float64]] = []
        self._first: list[NDArray[np.float32]] = []
        self._tier: list[NDArray[np.int16]] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        if self._spool is not None:
            self._spool.append(batch)
        part = schedule(batch, self._parser)
        self._due.append(part.deadline)
        self._first.append(part.ttft_ms)
        self._tier.append(part.tier)

    def rows(self, shard: Shard) -> NDArray[np.int64]:
        """Places of a shard's rows in the job, ascending, ``[rows of the shard]``."""
        if not self._due:
            return np.zeros(0, np.int64)
        priorities = np.array([tier.priority for tier in self._parser.tiers.values()], np.int16)
        tier, first = np.concatenate(self._tier), np.concatenate(self._first)
        # Stable, so the place in the table decides what is left; NaN sorts last.
        order = np.lexsort((priorities[tier], first, np.concatenate(self._due)))
        return np.sort(order[shard.number - 1 :: shard.count]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PickedSpool:
    """The rows of a shard in a spool of all."""

    spool: Spool
    rows: NDArray[np.int64]

    def row(self, index: int) -> pa.RecordBatch:
        """One row as a batch of length 1, by its place in the shard."""
        return self.spool.row(int(self.rows[index]))


@dataclass(frozen=True, slots=True)
class RowsRead:
    """What the first pass found.

    Attributes:
        table: The input, narrowed down to the rows of the shard.
        index: Of these rows.
        spool: Has them at hand.
        shard: Which shard of what; ``None`` for the whole job.
    """

    table: InputTable
    index: RowIndex
    spool: Spool | PickedSpool
    shard: ShardRecord | None


def read_rows(
    table: InputTable, parser: RowParser, spool: Spool, shard: Shard | None, check: Callable[[], None]
) -> RowsRead:
    """Read everything the rows of a job, or of one of its shards, need.

    Args:
        table: The input.
        parser: The job's defaults and clock.
        spool: Receives the rows.
        shard: Which part; ``None`` for all.
        check: Called now and then; may raise to stop.

    Raises:
        InputError: As :meth:`~specbatch.table.reader.InputTable.index`.
    """
    if shard is None:
        return RowsRead(table, table.index(parser, spool, check), spool, None)
    stripes = Stripes(parser, spool)
    index = table.index(parser, stripes, check)
    rows = stripes.rows(shard)
    digest = hashlib.sha256(index.keys.tobytes()).hexdigest()
    record = ShardRecord(number=shard.number, count=shard.count, rows_total=len(index), keys=digest)
    return RowsRead(replace(table, picked=rows), index.take(rows), PickedSpool(spool, rows), record)
