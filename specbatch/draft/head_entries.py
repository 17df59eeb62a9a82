"""The entries of one draft pass over many rows, gathered in lists and laid out as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from specbatch_kernels.cpu import AttentionKeys, ChainLevels, DraftBatch, Placement
from torch import Tensor

from specbatch.pages import slots_of
from specbatch.step import page_table
from specbatch.tensors import int32s, int64s


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of the rows of a pass.

    Attributes:
        rows: Pages of each row in logical order, from its origin on.
        tensor: The same, int32 ``[rows, longest]``, null pages behind.
        page_size: Entries in a page.
        origins: First position of each row that there are entries of, at the beginning of a page.
    """

    rows: Sequence[Sequence[int]]
    tensor: Tensor
    page_size: int
    origins: Sequence[int]

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[int]], page_size: int, origins: Sequence[int] | None = None
    ) -> PageTable:
        """Lay out the page numbers of several rows.

        Args:
            rows: All pages of each row in logical order.
            page_size: Entries in a page.
            origins: Positions, multiples of ``page_size``, before which a row has no entries; ``None``: all
                have all.
        """
        starts = [0] * len(rows) if origins is None else origins
        own = [pages[start // page_size :] for pages, start in zip(rows, starts, strict=True)]
        return cls(own, page_table(own), page_size, starts)

    def slots(self, row: int, positions: Iterable[int]) -> list[int]:
        """Where the K/V store holds these positions of a row."""
        origin = self.origins[row]
        return slots_of(self.rows[row], (position - origin for position in positions), self.page_size)


@dataclass(slots=True)
class Entries:
    """Entries of a pass, one list element each unless it says otherwise.

    Attributes:
        table: Pages of their rows.
        tokens: Target tokens.
        positions: For the rotary embedding.
        slots: Where the K/V store holds them.
        rows: Row of the page table.
        contexts: An entry sees so many of the row's positions, from its origin on,
        extras: and these (counted from there) behind them, all entries' one after another,
        extra_counts: as many for each.
    """

    table: PageTable
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    extras: list[int] = field(default_factory=list)
    extra_counts: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add_text(self, row: int, first: int, tokens: Sequence[int]) -> None:
        """Entries of committed tokens at consecutive positions."""
        span = range(first, first + len(tokens))
        self.tokens += tokens
        self.positions += span
        self.slots += self.table.slots(row, span)
        self.rows += [row] * len(tokens)
        seen = first - self.table.origins[row]
        self.contexts += range(seen + 1, seen + len(tokens) + 1)
        self.extra_counts += [0] * len(tokens)

    def add_node(self, row: int, token: int, position: int, context: int, lineage: Sequence[int]) -> None:
        """Entry of a tree node; ``lineage`` holds the places of its ancestors and, last, its own."""
        origin = self.table.origins[row]
        self.tokens.append(token)
        self.positions.append(position)
        self.slots += self.table.slots(row, lineage[-1:])
        self.rows.append(row)
        self.contexts.append(context - origin)
        self.extras += (place - origin for place in lineage) if origin else lineage
        self.extra_counts.append(len(lineage))

    @property
    def placement(self) -> Placement:
        """Positions and slots as tensors."""
        return Placement(int64s(self.positions), int64s(self.slots))

    def batch(
        self, wanted: Sequence[int], features: Tensor | None = None, chain: ChainLevels | None = None
    ) -> DraftBatch:
        """The entries as a pass takes them.

        Args:
            wanted: Those that predict.
            features: What they are made of, float32 ``[entries, captured layers, hidden]``; ``None`` for
                entries that continue others.
            chain: What follows in the same pass.
        """
        keys = AttentionKeys(
            page_table=self.table.tensor,
            token_row=int32s(self.rows),
            context_len=int32s(self.contexts),
            extra_offsets=int32s([0, *accumulate(self.extra_counts)]),
            extra_positions=int32s(self.extras),
        )
        tokens = int64s(self.tokens)
        return DraftBatch(tokens, self.placement, keys, int64s(wanted), features=features, chain=chain)
