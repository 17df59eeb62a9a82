"""The entries of one draft pass over many rows, gathered in lists and laid out as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from specbatch_kernels.cpu import AttentionKeys, DraftBatch, Placement
from torch import Tensor

from specbatch.pages import NULL_PAGE


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of the rows of a pass.

    Attributes:
        pages: int32 ``[rows, longest]``, null pages behind.
        page_size: Entries in a page.
    """

    pages: NDArray[np.int32]
    page_size: int

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], page_size: int) -> PageTable:
        """Lay out the page numbers of several rows."""
        table = np.full((len(rows), max(map(len, rows))), NULL_PAGE, dtype=np.int32)
        for i, pages in enumerate(rows):
            table[i, : len(pages)] = pages
        return cls(table, page_size)

    def slots(self, rows: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the K/V store holds these positions of these rows."""
        pages = self.pages[rows, places // self.page_size].astype(np.int64)
        return pages * self.page_size + places % self.page_size


@dataclass(slots=True)
class Entries:
    """Entries of a pass, one list element each unless it says otherwise.

    Attributes:
        tokens: Target tokens.
        positions: For the rotary embedding.
        places: Row positions at which keys and values are stored.
        rows: Row of the page table.
        contexts: An entry sees the row positions below this,
        extras: and these behind them, all entries' one after another,
        extra_counts: as many for each.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    extras: list[int] = field(default_factory=list)
    extra_counts: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add_text(self, row: int, first: int, tokens: Sequence[int]) -> None:
        """Entries of committed tokens at consecutive positions."""
        span = range(first, first + len(tokens))
        self.tokens.extend(tokens)
        self.positions.extend(span)
        self.places.extend(span)
        self.rows.extend([row] * len(tokens))
        self.contexts.extend(range(first + 1, first + len(tokens) + 1))
        self.extra_counts.extend([0] * len(tokens))

    def add_node(self, row: int, token: int, position: int, context: int, lineage: Sequence[int]) -> None:
        """Entry of a tree node; ``lineage`` holds the places of its ancestors and, last, its own."""
        self.tokens.append(token)
        self.positions.append(position)
        self.places.append(lineage[-1])
        self.rows.append(row)
        self.contexts.append(context)
        self.extras.extend(lineage)
        self.extra_counts.append(len(lineage))

    def batch(self, table: PageTable, wanted: Tensor) -> DraftBatch:
        """The entries as a pass takes them, without what they are made of."""
        offsets = np.zeros(len(self) + 1, dtype=np.int32)
        np.cumsum(self.extra_counts, out=offsets[1:])
        rows = np.array(self.rows, dtype=np.int32)
        keys = AttentionKeys(
            page_table=torch.from_numpy(table.pages),
            token_row=torch.from_numpy(rows),
            context_len=torch.tensor(self.contexts, dtype=torch.int32),
            extra_offsets=torch.from_numpy(offsets),
            extra_positions=torch.tensor(self.extras, dtype=torch.int32),
        )
        slots = torch.from_numpy(table.slots(rows, np.array(self.places, dtype=np.int64)))
        placement = Placement(torch.tensor(self.positions), slots)
        return DraftBatch(torch.tensor(self.tokens), placement, keys, wanted)
