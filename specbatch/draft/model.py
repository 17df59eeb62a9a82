"""Drafts from a small language model with the target's vocabulary (Leviathan et al. 2023).

The model runs in an executor of its own, whose K/V store has the target's page numbers, so that it needs
no bookkeeping for pages, and scratch pages behind them for the nodes of the trees in hand. What the
target has committed meanwhile is caught up with when a draft is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from specbatch.cache import PagedStore
from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.draft.head_entries import Entries, PageTable
from specbatch.draft.model_growth import Costs, Growth, step_of
from specbatch.draft.model_pages import StoredText
from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.rows import Row
from specbatch.step import PassOutput, Step
from specbatch.text.agreement import disagreement
from specbatch.text.tokenizer import Tokenizer
from specbatch.tree import TokenTree

MAX_TOKENS = 1024
"""Most committed tokens that one pass catches up with."""

_AT_ONCE = 64
"""Most committed tokens of a row that the pass for its tree's first level takes along."""


class DraftExecutor(Protocol):
    """Computes passes of the draft model; any executor of the native engine."""

    @property
    def store(self) -> PagedStore:
        """Keys and values: the target's pages, and scratch pages behind."""
        ...

    def forward(self, step: Step) -> PassOutput:
        """Logits of the wanted tokens."""
        ...


def check_pair(target: tuple[str, Tokenizer], draft: tuple[str, Tokenizer], config: ModelConfig) -> None:
    """Refuse a draft model that means other tokens by the same ids.

    Args:
        target: Name and tokenizer of the target.
        draft: Name and tokenizer of the draft model.
        config: Of the draft model.

    Raises:
        ModelError: With the reason.
    """
    hint = "choose a draft model of the same family as the target, or --drafter suffix"
    reason = disagreement(target[1], draft[1])
    if reason:
        raise ModelError(f"{draft[0]} cannot draft for {target[0]}: {reason}", hint)
    needed = max(target[1].backend.get_vocab(with_added_tokens=True).values()) + 1
    if config.vocab_size < needed:
        what = f"its embedding has {config.vocab_size:,} rows, the tokenizer {needed:,} ids"
        raise ModelError(f"{draft[0]} cannot draft for {target[0]}: {what}", hint)


class ModelDrafter:
    """Beams of a draft model for all rows together, one pass for each level of their trees.

    Args:
        executor: The draft model; its store has the target's pages and scratch pages.
        config: Of the draft model.
        vocab_size: Of the target: tokens from here on are not proposed.
        scratch_pages: Pages behind the target's, at least 1; with fewer than a whole batch needs, rows
            are drafted in several batches.

    Attributes:
        faults: How many drafts ended because the model's output was not finite.
    """

    name = "model"
    captured: tuple[int, ...] = ()

    def __init__(
        self, executor: DraftExecutor, config: ModelConfig, vocab_size: int, scratch_pages: int
    ) -> None:
        store = executor.store
        if not 1 <= scratch_pages < store.num_pages:
            raise ValueError(f"{scratch_pages} scratch pages in a store of {store.num_pages}")
        self.faults = 0
        self._executor, self._config = executor, config
        self._vocab_size = min(vocab_size, config.vocab_size)
        self._page_size = store.page_size
        self._scratch = range(store.num_pages - scratch_pages, store.num_pages)
        self._costs = Costs.of(config)
        self.begin()

    def begin(self) -> None:
        """Believe no page of the store, and owe nothing."""
        self._stored = StoredText(self._page_size)
        self._owed: dict[Row, tuple[int, float]] = {}

    def observe(self, observed: Sequence[Observed]) -> None:
        """Nothing to do: rows are caught up with when they are asked about."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request; the root alone where the model's context or the scratch pages end."""
        able = [i for i, request in enumerate(requests) if self._can_draft(request.row)]
        self._catch_up([requests[i].row for i in able])
        drafts: dict[int, Draft] = {}
        for group in self._groups([(i, requests[i]) for i in able]):
            grown = self._grow([request for _, request in group])
            drafts.update(zip((i for i, _ in group), grown, strict=True))
        return [drafts.get(i) or _nothing(request.row) for i, request in enumerate(requests)]

    def forget(self, row: Row) -> None:
        """Drop what is known of a row; its pages' content serves rows that share them."""
        self._stored.drop(row)

    def _can_draft(self, row: Row) -> bool:
        room = len(self._scratch) * self._page_size
        return row.committed <= self._config.max_context and self._overflow(row) <= room

    def _overflow(self, row: Row) -> int:
        """Committed tokens for which the row has no page yet."""
        return max(0, row.committed - len(row.pages) * self._page_size)

    def _catch_up(self, rows: Sequence[Row]) -> None:
        """Compute prompts, in passes of bounded size; what is left of a row fits into any pass."""
        spans = []
        for row in rows:
            first, end = self._stored.stored(row), row.committed - self._overflow(row) - 1
            if row.committed - first > _AT_ONCE:
                spans += [(row, at, min(end, at + MAX_TOKENS)) for at in range(first, end, MAX_TOKENS)]
        for batch in _batches(spans):
            entries = Entries(PageTable.of([row.pages for row, _, _ in batch], self._page_size))
            for index, (row, first, end) in enumerate(batch):
                entries.add_text(index, first, row.tokens(first, end))
            self._executor.forward(step_of(entries, []))
            for row, first, end in batch:
                self._stored.mark(row, first, end)
                passes, flops = self._owed.get(row, (0, 0.0))
                self._owed[row] = passes + 1, flops + self._costs.text(first, end)

    def _groups(
        self, requests: Sequence[tuple[int, DraftRequest]]
    ) -> Iterator[list[tuple[int, DraftRequest]]]:
        """Split requests so that the trees of each part fit on the scratch pages."""
        group: list[tuple[int, DraftRequest]] = []
        used = 0
        for i, request in requests:
            need = self._scratch_need(request)
            if group and used + need > len(self._scratch):
                yield group
                group, used = [], 0
            group.append((i, request))
            used += need
        if group:
            yield group

    def _scratch_need(self, request: DraftRequest) -> int:
        """Pages for the nodes that are expanded, and for what the row's own pages do not hold."""
        shape = request.shape
        nodes = (shape.levels - 1) * min(shape.width, shape.nodes)
        return min(-(-(self._overflow(request.row) + nodes) // self._page_size), len(self._scratch))

    def _grow(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Grow the trees of all requests level by level."""
        growths, pages, used = [], [], 0
        for index, request in enumerate(requests):
            need = self._scratch_need(request)
            pages.append([*request.row.pages, *self._scratch[used : used + need]])
            used += need
            growths.append(self._growth(index, request, len(pages[-1]) * self._page_size))
        table = PageTable.of(pages, self._page_size)
        entries, wanted = Entries(table), []
        starts = [self._stored.stored(growth.row) for growth in growths]
        for growth, first in zip(growths, starts, strict=True):
            wanted += growth.add_text(entries, first)
        self._run(entries, wanted, growths)
        for growth, first in zip(growths, starts, strict=True):
            self._stored.mark(growth.row, first, growth.row.committed)
        while active := [growth for growth in growths if growth.size]:
            entries, wanted = Entries(table), []
            for growth in active:
                wanted += growth.add_frontier(entries)
            self._run(entries, wanted, active)
        return [self._finish(growth) for growth in growths]

    def _growth(self, index: int, request: DraftRequest, places: int) -> Growth:
        """A tree no deeper than there are places and positions for it."""
        row, shape = request.row, request.shape
        first_place = max(row.committed, len(row.pages) * self._page_size)
        expanded = max(0, places - first_place) // min(shape.width, shape.nodes)
        levels = min(shape.levels, 1 + expanded, self._config.max_context - row.committed + 1)
        return Growth(index, request, levels, first_place, self._costs)

    def _run(self, entries: Entries, wanted: Sequence[int], growths: Sequence[Growth]) -> None:
        """One pass, and a level more for each of the trees."""
        logits = self._executor.forward(step_of(entries, wanted)).logits[:, : self._vocab_size]
        sizes = [growth.size for growth in growths]
        for growth, own in zip(growths, torch.split(logits, sizes), strict=True):
            growth.take(own)

    def _finish(self, growth: Growth) -> Draft:
        """The draft, with all that was computed for the row since the last one."""
        row = growth.row
        passes, flops = self._owed.pop(row, (0, 0.0))
        if growth.failed:
            self.faults += 1
            self._stored.distrust(row)
        return Draft(growth.tree(), passes + growth.passes, flops + growth.flops)


def _nothing(row: Row) -> Draft:
    return Draft(TokenTree.root(row.token(row.committed - 1)))


def _batches(spans: Sequence[tuple[Row, int, int]]) -> Iterator[list[tuple[Row, int, int]]]:
    """Gather spans, none longer than :data:`MAX_TOKENS`, into passes; no row twice in one."""
    batch: list[tuple[Row, int, int]] = []
    room = MAX_TOKENS
    for row, first, end in spans:
        if batch and (end - first > room or batch[-1][0] is row):
            yield batch
            batch, room = [], MAX_TOKENS
        batch.append((row, first, end))
        room -= end - first
    if batch:
        yield batch
