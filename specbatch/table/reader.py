"""The input table: checked as a whole, and indexed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.config import JobConfig
from specbatch.errors import InputError
from specbatch.table.columns import Layout, canonical, plan_layout
from specbatch.table.ids import FilePlaces
from specbatch.table.index import IndexBuilder, RowIndex
from specbatch.table.parse import RowParser
from specbatch.table.source import SourceFile, open_sources
from specbatch.table.template import Template
from specbatch.table.where import Where


class BatchSink(Protocol):
    """Sees the rows of the first pass, e.g. a :class:`~specbatch.table.spool.Spool`."""

    def append(self, batch: pa.RecordBatch) -> None:
        """The next rows of the input, as canonical columns."""


@dataclass(frozen=True, slots=True)
class InputTable:
    """The files of a job, checked; nothing but their footers is read yet.

    Attributes:
        sources: In job order.
        layouts: One per source.
        carried: Schema of the pass-through columns.
        where: Which rows belong to the job; ``None`` for all.
        limit: Rows of the job at most, counted after ``where``.
        picked: Places of the rows of a shard in the job, ascending, ``[rows]``; ``None`` for all.
    """

    sources: tuple[SourceFile, ...]
    layouts: tuple[Layout, ...]
    carried: pa.Schema
    where: Where | None = None
    limit: int | None = None
    picked: NDArray[np.int64] | None = None

    @classmethod
    def open(cls, config: JobConfig) -> InputTable:
        """Find the files and check their columns.

        Raises:
            InputError: Something is wrong with a file or a whole column.
        """
        where = None if config.where is None else Where.parse(config.where)
        template = None if config.template is None else Template.parse(config.template)
        # Footers say how many rows there are, but not how many of them are wanted.
        sources = open_sources(config.input, config.limit if where is None else None)
        layouts = tuple(
            plan_layout(source.schema, config.renamed, config.tz, source.name, template) for source in sources
        )
        if where is not None:
            for source in sources:
                where.check(source.schema, source.name)
        carried = [_carried(source, layout) for source, layout in zip(sources, layouts, strict=True)]
        for source, schema in zip(sources[1:], carried[1:], strict=True):
            _check_same(carried[0], schema, sources[0].name, source.name)
        return cls(sources, layouts, carried[0], where, config.limit)

    @property
    def num_rows(self) -> int:
        """Rows of the job; with ``where``, of its files (an upper bound: only reading them tells)."""
        return sum(source.num_rows for source in self.sources)

    def check_unchanged(self) -> None:
        """See that the files are those that were opened: answers and columns of two versions do not mix.

        Raises:
            StorageError: One was replaced.
        """
        for source in self.sources:
            source.check_unchanged()

    def fingerprint(self) -> list[dict[str, object]]:
        """Equal fingerprints mean equal input, without reading it."""
        chosen = {} if self.where is None else {"where": self.where.text}
        return [source.fingerprint() | chosen for source in self.sources]

    def index(
        self, parser: RowParser, spool: BatchSink | None = None, check: Callable[[], None] | None = None
    ) -> RowIndex:
        """Read everything a row needs, once.

        Args:
            parser: The job's defaults and clock.
            spool: Receives the rows, for :class:`~specbatch.table.fetch.RowFetcher` or to look at; ``None``
                when nobody wants them.
            check: Called now and then; may raise to stop.

        Raises:
            InputError: A file is damaged, or every row sets both ``prompt`` and ``messages``.
        """
        builder, rows = IndexBuilder(parser), 0
        names, starts = list[str](), list[int]()
        clash = _Clash()
        for source, layout, batch in self._batches(lambda layout: layout.needed):
            known = canonical(batch, layout, source.name)
            clash.look(known)
            builder.append(known)
            if names[-1:] != [source.name]:
                names.append(source.name)
                starts.append(rows)
            rows += batch.num_rows
            if spool is not None:
                spool.append(known)
            if check is not None:
                check()
        clash.verify(self.sources[0].name)
        return builder.build(FilePlaces(tuple(names), tuple(starts)))

    def ids(self, rows: Sequence[int]) -> dict[int, object]:
        """``id`` of some rows, by their places in the job; nothing is read behind the last of them.

        Raises:
            InputError: A file is damaged.
        """
        found: dict[int, object] = {}
        seen, end = 0, max(rows, default=-1)
        for source, layout, batch in self._batches(lambda layout: tuple(_only_id(layout).known.values())):
            if seen > end:
                break
            inside = [row for row in rows if seen <= row < seen + batch.num_rows]
            if inside:
                known = canonical(batch, _only_id(layout), source.name).column("id")
                found |= {row: known[row - seen].as_py() for row in inside}
            seen += batch.num_rows
        return found

    def carried_batches(self) -> Iterator[pa.RecordBatch]:
        """``id`` (large_binary) and the pass-through columns in input order, streamed; a shard's rows only.

        Raises:
            InputError: A file is damaged.
        """
        seen = 0
        for source, layout, batch in self._batches(_output_columns):
            carried = self._carry(batch, _only_id(layout), source.name)
            if self.picked is not None:
                first, end = np.searchsorted(self.picked, (seen, seen + batch.num_rows))
                carried = carried.take(pa.array(self.picked[first:end] - seen))
            seen += batch.num_rows
            yield carried

    def places(self, first: int, count: int) -> NDArray[np.int64]:
        """Where some consecutive rows of :meth:`carried_batches` stand in the job, ``[count]``."""
        if self.picked is None:
            return np.arange(first, first + count)
        return self.picked[first : first + count]

    def _batches(
        self, columns: Callable[[Layout], Sequence[str]]
    ) -> Iterator[tuple[SourceFile, Layout, pa.RecordBatch]]:
        """Some columns of the job's rows, with the file that each batch is from."""
        left = self.limit
        for source, layout in zip(self.sources, self.layouts, strict=True):
            names = columns(layout)
            for batch in self._chosen(source, names):
                part = batch if left is None else batch.slice(0, left)
                yield source, layout, part
                left = None if left is None else left - part.num_rows
                if left == 0:
                    return

    def _chosen(self, source: SourceFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.where is None:
            yield from source.batches(names)
            return
        for batch in source.batches(tuple(dict.fromkeys([*names, *self.where.columns]))):
            yield self.where.keep(batch, source.name).select(names)

    def _carry(self, batch: pa.RecordBatch, only_id: Layout, name: str) -> pa.RecordBatch:
        ids = (
            canonical(batch, only_id, name).column("id")
            if only_id.known
            else pa.nulls(batch.num_rows, "large_binary")
        )
        columns = [batch.column(field.name).cast(field.type) for field in self.carried]
        return pa.RecordBatch.from_arrays([ids, *columns], names=["id", *self.carried.names])


class _Clash:
    """Both prompt columns filled in one row is that row's fault; in every row it is the table's."""

    def __init__(self) -> None:
        self.both = 0
        self.single = 0

    def look(self, batch: pa.RecordBatch) -> None:
        if not {"prompt", "messages"} <= set(batch.schema.names):
            self.single += batch.num_rows
            return
        prompt = batch.column("prompt").is_valid().to_numpy(zero_copy_only=False)
        messages = batch.column("messages").is_valid().to_numpy(zero_copy_only=False)
        self.both += int(np.count_nonzero(prompt & messages))
        self.single += int(np.count_nonzero(prompt ^ messages))

    def verify(self, file: str) -> None:
        if self.both and not self.single:
            raise InputError(
                f"{file}: columns `prompt` and `messages` are both set in every row",
                "keep one of the two columns",
            )


def _only_id(layout: Layout) -> Layout:
    return Layout({ours: layout.known[ours] for ours in ("id",) if ours in layout.known}, (), None)


def _output_columns(layout: Layout) -> tuple[str, ...]:
    return (*_only_id(layout).known.values(), *layout.carried)


def _carried(source: SourceFile, layout: Layout) -> pa.Schema:
    """Pass-through fields; a column of nothing but nulls is written as strings."""
    fields = [source.schema.field(name) for name in layout.carried]
    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in fields]
    )


def _check_same(first: pa.Schema, other: pa.Schema, first_name: str, other_name: str) -> None:
    for name in {**dict.fromkeys(first.names), **dict.fromkeys(other.names)}:
        if name not in first.names or name not in other.names:
            missing = first_name if name not in first.names else other_name
            raise InputError(
                f"{missing}: no column `{name}`, which other files of the job have", "make them alike"
            )
        expected, found = first.field(name).type, other.field(name).type
        if found != expected:
            what = f"{other_name}: column `{name}` is {found}, but {expected} in {first_name}"
            raise InputError(what, "make the files alike")
