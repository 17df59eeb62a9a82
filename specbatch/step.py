"""``Step``: the flat tensors of one target pass. Born here, frozen, gone after the pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbatch.pages import NULL_PAGE
from specbatch.rows import Row


@dataclass(frozen=True, slots=True)
class Work:
    """How much of one row a pass computes.

    Attributes:
        row: The row; its pages already reach to the last token of this work.
        count: Committed tokens to compute, starting at ``row.cached``; at least 1.
    """

    row: Row
    count: int

    @property
    def yields_token(self) -> bool:
        """Whether the pass reaches the row's last committed token, so that the next one is due."""
        return self.row.cached + self.count == self.row.committed


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over T tokens of R rows, rows one after another (ragged, no padding).

    Attributes:
        tokens: Token ids, int64 ``[T]``.
        positions: Logical position of each token, int64 ``[T]``; a token attends to the positions
            of its row up to its own.
        slots: Where each token's keys and values are written, int64 ``[T]``.
        row_starts: First token of each row and the end, ``R + 1`` integers.
        page_table: Pages of each row in logical order, int64 ``[R, pages]``, null pages behind.
        page_size: Tokens in a page.
        wanted: Tokens (indices into T) whose logits are needed, int64 ``[S]``.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    row_starts: tuple[int, ...]
    page_table: Tensor
    page_size: int
    wanted: Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.row_starts[-1]

    def to(self, device: torch.device) -> Step:
        """The same step with its tensors on a device."""
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            slots=self.slots.to(device, non_blocking=True),
            page_table=self.page_table.to(device, non_blocking=True),
            wanted=self.wanted.to(device, non_blocking=True),
        )


def build_step(work: Sequence[Work], page_size: int) -> Step:
    """Lay out one pass.

    Args:
        work: At least one row, each row at most once.
        page_size: Tokens in a page.
    """
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    wanted: list[int] = []
    for item in work:
        span = range(item.row.cached, item.row.cached + item.count)
        positions.extend(span)
        tokens.extend(item.row.token(position) for position in span)
        starts.append(len(tokens))
        if item.yields_token:
            wanted.append(len(tokens) - 1)
    page_table = _page_table([item.row.pages for item in work])
    counts = torch.tensor([item.count for item in work])
    row_of_token = torch.repeat_interleave(torch.arange(len(work)), counts)
    where = torch.tensor(positions)
    slots = page_table[row_of_token, where // page_size] * page_size + where % page_size
    return Step(
        tokens=torch.tensor(tokens),
        positions=where,
        slots=slots,
        row_starts=tuple(starts),
        page_table=page_table,
        page_size=page_size,
        wanted=torch.tensor(wanted, dtype=torch.int64),
    )


def _page_table(pages: Sequence[Sequence[int]]) -> Tensor:
    """int64 ``[R, longest]``, padded with the null page."""
    table = torch.full((len(pages), max(map(len, pages))), NULL_PAGE, dtype=torch.int64)
    for i, row_pages in enumerate(pages):
        table[i, : len(row_pages)] = torch.tensor(row_pages)
    return table
