"""Rows of a run directory: of ``results.parquet``, or of the parts where that is not to be had."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.table.keys import KEY_BYTES
from specbatch.table.parts import part_keys
from specbatch.table.schema import KEY, output_schema

OWNER = "owner"
NEEDED = tuple(name for name in output_schema(token_ids=False).names if name != "text")
"""Columns of our own that a report looks at: neither texts nor token ids."""

_NOT_IN_PARTS = ("id",)
_UNREADABLE = (OSError, pa.ArrowException, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says about the run that it belongs to.

    Attributes:
        run_id: Empty where it does not say.
        specbatch: Version that wrote it.
        config: Settings of the job; only ``results.parquet`` has them.
    """

    run_id: str = ""
    specbatch: str = ""
    config: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows as far as they could be read.

    Attributes:
        table: ``NEEDED`` columns and ``owner``; columns that the files lack are null.
        footer: Of the files.
        problems: What could not be read, one line each.
    """

    table: pa.Table
    footer: Footer
    problems: tuple[str, ...] = ()


def results_rows(path: Path, owner: str) -> FoundRows:
    """Rows of ``results.parquet``.

    Args:
        path: The file.
        owner: Name of its column of owners, if it has one.

    Raises:
        OSError: It is missing or cannot be read.
        pa.ArrowException: It is damaged.
        ValueError: Likewise.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        there = set(file.schema_arrow.names)
        if "status" not in there:
            raise ValueError(f"{path} holds something else than results")
        chosen = [name for name in (*NEEDED, owner) if name in there]
        table, metadata = file.read(columns=chosen), file.schema_arrow.metadata
    if owner in there and owner != OWNER:
        table = table.rename_columns([OWNER if name == owner else name for name in table.column_names])
    absent = [name for name in NEEDED if name not in there]
    problems = (_older("results.parquet", absent),) if absent else ()
    return FoundRows(_complete(table), _footer(metadata or {}), problems)


def parts_rows(folder: Path, run_id: str) -> FoundRows:
    """Rows that are safe in the parts of a run; of two answers for one row, the later counts.

    Args:
        folder: Holds the parts; a missing one holds none.
        run_id: Parts of other runs are left out; empty takes the run of the latest part.
    """
    tables: list[pa.Table] = []
    problems: list[str] = []
    footer = Footer()
    for path in sorted(folder.glob("part-*.parquet"), reverse=True):
        try:
            table, found, absent = _read_part(path)
        except _UNREADABLE:
            problems.append(f"parts/{path.name}: damaged or incomplete; its rows are not in this report")
            continue
        if found.run_id != (run_id or footer.run_id or found.run_id):
            problems.append(f"parts/{path.name}: belongs to another run; its rows are not in this report")
            continue
        footer = footer if footer.run_id else found
        if absent and not tables:
            problems.append(_older(f"parts/{path.name}", absent))
        tables.append(table)
    joined = pa.concat_tables(tables[::-1]) if tables else _complete(pa.table({}))
    return FoundRows(_latest(joined), footer, tuple(problems[::-1]))


def _read_part(path: Path) -> tuple[pa.Table, Footer, list[str]]:
    """Rows with their keys, what the file says of its run, and which columns it lacks."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        there = set(file.schema_arrow.names)
        found = _footer(file.schema_arrow.metadata or {})
        table = file.read(columns=[KEY, *(name for name in NEEDED if name in there)])
    absent = [name for name in NEEDED if name not in there and name not in _NOT_IN_PARTS]
    return _complete(table).append_column(KEY, table.column(KEY).cast(pa.binary(KEY_BYTES))), found, absent


def _latest(table: pa.Table) -> pa.Table:
    """The last row of each key, in the order they ended."""
    if KEY not in table.column_names:
        return table
    keys = part_keys(table)
    _, back = np.unique(keys[::-1], return_index=True)
    return table.take(np.sort(len(keys) - 1 - back)).drop_columns([KEY])


def _schema() -> pa.Schema:
    ours = output_schema(token_ids=False)
    fields = [ours.field(name).with_nullable(True) for name in NEEDED]
    return pa.schema([*fields, pa.field(OWNER, pa.string())])


def _complete(table: pa.Table) -> pa.Table:
    """All columns of a report in their declared types; null where there is nothing."""
    columns = []
    for field in _schema():
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=_schema())


def _older(file: str, absent: list[str]) -> str:
    listed = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
    return f"{file}: has no column {listed} (another version wrote it); what depends on them is null"


def _footer(metadata: Mapping[bytes, bytes]) -> Footer:
    config = json.loads(metadata.get(b"specbatch.config", b"null"))
    return Footer(
        metadata.get(b"specbatch.run_id", b"").decode(),
        metadata.get(b"specbatch.version", b"").decode(),
        config if isinstance(config, dict) else None,
    )
