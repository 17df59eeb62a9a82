"""Rows of the input in any order, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from specbatch.errors import RowFault
from specbatch.rows import RawPrompt
from specbatch.table.ids import duplicate_id
from specbatch.table.index import RowIndex
from specbatch.table.keys import key_hex
from specbatch.table.parse import RowParser

Made = TypeVar("Made")


class RowSource(Protocol):
    """Has rows at hand, e.g. a :class:`~specbatch.table.spool.Spool`."""

    def row(self, index: int) -> pa.RecordBatch:
        """One row as a batch of length 1."""


@dataclass(frozen=True, slots=True)
class RowFetcher:
    """Rows by index, read from the spool at admission."""

    index: RowIndex
    parser: RowParser
    spool: RowSource

    def fetch(self, row_index: int, demoted: str | None = None) -> RawPrompt:
        """One row, checked.

        Args:
            row_index: Its place in the input.
            demoted: Why it gets the default tier; ``None``: the one it asks for.

        Raises:
            RowFault: The row cannot be answered.
        """
        return self.prompt(row_index, lambda raw: raw, demoted)

    def prompt(self, row_index: int, encode: Callable[[RawPrompt], Made], demoted: str | None = None) -> Made:
        """One row, checked and made into something; its own faults come before an id that it repeats.

        Args:
            row_index: Its place in the input.
            encode: Looks at the text; may find a fault.
            demoted: Why it gets the default tier; ``None``: the one it asks for.

        Raises:
            RowFault: The row cannot be answered.
        """
        cells = self.cells(row_index)
        made = encode(self.parser.parse(row_index, key_hex(self.index.keys[row_index]), cells, demoted))
        first = int(self.index.same_id[row_index])
        if first >= 0:
            raise duplicate_id(cells["id"], first, self.index.files)
        return made

    def cells(self, row_index: int) -> Mapping[str, object]:
        """The row's canonical columns as Python values.

        Raises:
            RowFault: Nested text is not UTF-8.
        """
        batch = self.spool.row(row_index)
        return {name: _cell(batch, name) for name in batch.schema.names}


def _cell(batch: pa.RecordBatch, name: str) -> object:
    try:
        return batch.column(name)[0].as_py()
    except UnicodeDecodeError as error:
        raise RowFault(
            "invalid_utf8", f"column `{name}` is not UTF-8 ({error.reason}); re-encode it"
        ) from None
