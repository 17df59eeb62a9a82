"""``Step``: the flat tensors of one target pass. Born here, frozen, gone after the pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbatch.pages import NULL_PAGE, slots_of
from specbatch.tensors import int32s, int64s
from specbatch.tree import TokenTree
from specbatch.work import Work


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over T tokens of R rows, rows one after another (ragged, no padding).

    A token attends to the row's positions below its ``context_len`` and then to its extra positions,
    in that order. For committed tokens that is everything up to themselves. Drafted tokens of a row
    stand behind its committed ones, in the order of the tree. Those of a chain attend as committed ones
    do; those of a tree that branches have extra positions: their ancestors below the root, and
    themselves last.

    Attributes:
        tokens: Token ids, int64 ``[T]``.
        positions: Logical position of each token (rotary embedding), int64 ``[T]``; that of a drafted
            token counts from the root by depth.
        slots: Where each token's keys and values are written, int64 ``[T]``.
        row_starts: First token of each row and the end, ``R + 1`` integers.
        text_ends: Behind the committed tokens of each row, R integers; drafted ones follow.
        token_rows: Row of each token, int32 ``[T]``.
        page_table: Pages of each row in logical order, int32 ``[R, pages]``, null pages behind.
        page_size: Tokens in a page.
        wanted: Tokens (indices into T) whose logits are needed, int64 ``[S]``: for each row that is
            due a token its last committed token, then its drafted tokens.
        context_len: int32 ``[T]``.
        extra_offsets: Bounds of each token's part of ``extra_positions``, int32 ``[T + 1]``.
        extra_positions: Positions of the row, int32 ``[E]``.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    row_starts: tuple[int, ...]
    text_ends: tuple[int, ...]
    token_rows: Tensor
    page_table: Tensor
    page_size: int
    wanted: Tensor
    context_len: Tensor
    extra_offsets: Tensor
    extra_positions: Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.row_starts[-1]

    @property
    def key_counts(self) -> Tensor:
        """Keys that each token attends to, int32 ``[T]``."""
        return self.context_len + self.extra_offsets.diff()

    def to(self, device: torch.device) -> Step:
        """The same step with its tensors on a device."""
        if self.tokens.device == device:
            return self
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            slots=self.slots.to(device, non_blocking=True),
            token_rows=self.token_rows.to(device, non_blocking=True),
            page_table=self.page_table.to(device, non_blocking=True),
            wanted=self.wanted.to(device, non_blocking=True),
            context_len=self.context_len.to(device, non_blocking=True),
            extra_offsets=self.extra_offsets.to(device, non_blocking=True),
            extra_positions=self.extra_positions.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a target pass computed.

    Attributes:
        logits: Of the wanted tokens, float32 ``[S, vocab]``.
        features: Inputs of the captured layers at all tokens, ``[captured layers, T, hidden]``, on the
            CPU; ``None`` when none is captured.
    """

    logits: Tensor
    features: NDArray[np.float32] | None = None


def build_step(work: Sequence[Work], page_size: int) -> Step:
    """Lay out one pass.

    Args:
        work: At least one row, each row at most once.
        page_size: Tokens in a page.
    """
    layout = _Layout(page_size)
    for number, item in enumerate(work):
        layout.add(number, item)
    return Step(
        tokens=int64s(layout.tokens),
        positions=int64s(layout.positions),
        slots=int64s(layout.slots),
        row_starts=tuple(layout.starts),
        text_ends=tuple(layout.text_ends),
        token_rows=int32s(layout.rows),
        page_table=page_table([item.row.pages for item in work]),
        page_size=page_size,
        wanted=int64s(layout.wanted),
        context_len=int32s(layout.contexts),
        extra_offsets=int32s([0, *accumulate(layout.extra_counts)]),
        extra_positions=int32s(layout.extras),
    )


@dataclass(slots=True)
class _Layout:
    """The columns of a step under construction.

    Attributes:
        extra_counts: Extra positions of each token.
    """

    page_size: int
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    extra_counts: list[int] = field(default_factory=list)
    extras: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    text_ends: list[int] = field(default_factory=list)

    def add(self, number: int, item: Work) -> None:
        """Append one row."""
        row, first, end = item.row, item.row.cached, item.row.cached + item.count
        self.tokens += row.tokens(first, end)
        self._add_line(first, end)
        self.text_ends.append(len(self.tokens))
        if item.yields_token:
            self.wanted.append(len(self.tokens) - 1)
        if item.tree is not None:
            self._add_tree(item.tree, end - 1)
            end += item.tree.size
        self.slots += slots_of(row.pages, range(first, end), self.page_size)
        self.rows += [number] * (end - first)
        self.starts.append(len(self.tokens))

    def _add_line(self, first: int, end: int) -> None:
        """Tokens at consecutive positions, each of which attends to all up to itself."""
        self.positions += range(first, end)
        self.contexts += range(first + 1, end + 1)
        self.extra_counts += [0] * (end - first)

    def _add_tree(self, tree: TokenTree, root: int) -> None:
        """Append the drafted tokens of a tree whose root stands at position ``root``."""
        self.wanted += range(len(self.tokens), len(self.tokens) + tree.size)
        self.tokens += tree.tokens[1:].tolist()
        if tree.is_chain:
            self._add_line(root + 1, root + 1 + tree.size)
            return
        lineages = tree.lineages[1:]
        depths = [len(lineage) for lineage in lineages]
        self.positions += [root + depth for depth in depths]
        self.contexts += [root + 1] * tree.size
        self.extra_counts += depths
        self.extras += [root + node for lineage in lineages for node in lineage]


def page_table(pages: Sequence[Sequence[int]]) -> Tensor:
    """The pages of R rows: int32 ``[R, longest]``, padded with the null page."""
    longest = max(map(len, pages))
    rows = [[*own, *[NULL_PAGE] * (longest - len(own))] for own in pages]
    return torch.from_numpy(np.array(rows, dtype=np.int32))
