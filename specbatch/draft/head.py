"""Drafts from a one-layer head on the target's own features (EAGLE-3, Li et al. 2025).

An entry of the head stands for one token: it combines the token's embedding with the target's features
at the token before. Entries of committed tokens are computed from true features and stored under the
target's own page numbers, so that rows which share pages share them too. Entries of tree nodes continue
what the entry above gave back; they live on scratch pages and are forgotten with the draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from specbatch_kernels.cpu import ChainLevels, DraftBatch, DraftOutputs, KvCache, advise_large_pages
from torch import Tensor

from specbatch.cache import KVStore
from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.draft.head_chain import NOT_DRAFTED, chain_levels, read_chain
from specbatch.draft.head_entries import Entries, PageTable
from specbatch.draft.head_growth import Growth, drafted_levels
from specbatch.draft.head_memory import FeatureMemory
from specbatch.draft.head_runner import HeadRunner
from specbatch.draft.interest import WINDOW, Interest
from specbatch.rows import Row
from specbatch.tensors import float64s, int64s, room
from specbatch.tree import TokenTree

MAX_ENTRIES = 512
"""Most committed tokens that one pass catches up with: its buffers take 34 KiB each at width 576."""

MAX_WAITING = 128
"""Most tokens of a row's answer that wait until it drafts: their features take 7 KiB each at width 576.

What a row never drafts from is then mostly never computed. Prompts do not wait: rows share them.
"""


class HeadDrafter:
    """Drafts for all rows together, one pass of the head for each level of their trees.

    Args:
        runner: The head.
        num_pages: Pages of the target's store.
        page_size: Tokens in a page.
        scratch_pages: Pages for the nodes of trees that grow at the same time, at least 2; with fewer
            than a whole batch needs, rows are drafted in several batches.

    Attributes:
        faults: How many drafts ended because the head's output was not finite. Such a row's draft is
            its root alone, and what the head has stored for it is wiped.
    """

    name = "head"

    def __init__(self, runner: HeadRunner, num_pages: int, page_size: int, scratch_pages: int) -> None:
        if scratch_pages < 2:
            raise ValueError(f"a tree needs at least 2 scratch pages, got {scratch_pages}")
        self._runner = runner
        config = runner.config
        self.captured = config.captured
        self.faults = 0
        self._scratch = range(num_pages, num_pages + scratch_pages)
        shape = (1, num_pages + scratch_pages, config.kv_heads, config.head_dim)
        self._store = KVStore.zeros(shape, page_size, torch.float32, runner.device)
        if runner.device.type == "cpu":
            advise_large_pages(self._store.keys)
            advise_large_pages(self._store.values)
        features = len(config.captured), config.hidden
        self._memory = FeatureMemory(num_pages, self._store.page_size, features)
        self.begin()

    def begin(self) -> None:
        """Forget all features; what is stored is overwritten before it is read again."""
        self._interest = Interest()
        self._memory.clear()

    def observe(self, observed: Sequence[Observed]) -> None:
        """Keep the features, and catch up with prompts, and with answers before they take too much memory."""
        self._interest.observe(observed)
        for item in observed:
            self._memory.add(item)
        if not self._interest.is_lively:
            for item in observed:
                self._memory.forgo(item.row, WINDOW)
            return
        size = self._store.page_size
        self._keep_up([item.row for item in observed if self._memory.prompt_waits(item.row)], size)
        self._keep_up([item.row for item in observed], max(size, MAX_WAITING))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request; the root alone for rows that were never observed."""
        self._interest.asked(len(requests))
        able = [request for request in requests if self._memory.covers(request.row)]
        self._keep_up([request.row for request in able], self._store.page_size)
        drafts: dict[Row, Draft] = {}
        chains = [request for request in able if request.shape.width == 1]
        for group in self._groups(chains):
            drafts.update(self._draft_chains(group))
        for group in self._groups([request for request in able if request.shape.width > 1]):
            drafts.update(self._draft_trees(group))
        return [drafts.get(request.row) or Draft(_root(request.row)) for request in requests]

    def forget(self, row: Row) -> None:
        """Drop what is kept for a row; its pages' content is overwritten by their next owner."""
        self._memory.drop(row)

    def _groups(self, requests: Sequence[DraftRequest]) -> Iterator[list[DraftRequest]]:
        """Split requests so that the trees of each part fit on the scratch pages."""
        group: list[DraftRequest] = []
        used = 0
        for request in requests:
            need = self._scratch_need(request)
            if group and used + need > len(self._scratch):
                yield group
                group, used = [], 0
            group.append(request)
            used += need
        if group:
            yield group

    def _scratch_need(self, request: DraftRequest) -> int:
        """Pages for the nodes that will be expanded, and for what the row's own pages do not hold yet."""
        row, size = request.row, self._store.page_size
        overflow = max(0, row.committed - len(row.pages) * size)
        width = min(request.shape.width, request.shape.nodes)
        return min(-(-(overflow + (request.shape.levels - 1) * width) // size), len(self._scratch))

    def _growths(self, requests: Sequence[DraftRequest]) -> tuple[list[Growth], PageTable]:
        """A tree to grow for each request, and the pages that each may use."""
        growths, pages, origins, used = [], [], [], 0
        size = self._store.page_size
        for index, request in enumerate(requests):
            need = self._scratch_need(request)
            own = self._scratch[used : used + need]
            used += need
            pages.append([*request.row.pages, *own])
            levels = drafted_levels(request, len(pages[-1]) * size, size, self._runner.positions)
            origins.append(self._memory.origin(request.row))
            growths.append(Growth(index, request, levels, size, origins[-1]))
        return growths, PageTable.of(pages, size, origins)

    def _draft_chains(self, requests: Sequence[DraftRequest]) -> dict[Row, Draft]:
        """Draft chains of any lengths, all levels in one call."""
        growths, table = self._growths(requests)
        growths.sort(key=lambda growth: -growth.levels)
        chain = chain_levels(growths, table)
        batch = self._text(growths, table, chain)
        nodes = [
            (growth, depth)
            for depth, count in enumerate((len(growths), *chain.counts))
            for growth in growths[:count]
        ]
        outputs = self._outputs(nodes, 1)
        self._run(batch, outputs)
        ids = [best for (best,) in outputs.ids.tolist()]
        log_probs = [best for (best,) in outputs.log_probs.tolist()]
        starts = [0, *accumulate((len(growths), *chain.counts))]
        drafts = {}
        for i, growth in enumerate(growths):
            self._memory.mark_stored(growth.row)
            places = [start + i for start in starts[: growth.levels]]
            made = [(ids[place], log_probs[place]) for place in places if ids[place] != NOT_DRAFTED]
            for depth in range(1, len(made)):
                growth.charge_nodes(self._runner.config, 1, depth)
            produced = sum(token >= 0 for token, _ in made)
            drafts[growth.row] = self._finish(growth, read_chain(growth, made), produced)
        return drafts

    def _draft_trees(self, requests: Sequence[DraftRequest]) -> dict[Row, Draft]:
        """Grow the trees of all requests level by level."""
        growths, table = self._growths(requests)
        outputs = self._level_outputs(growths)
        self._run(self._text(growths, table), outputs)
        for growth in growths:
            self._memory.mark_stored(growth.row)
        active = self._advance(growths, outputs)
        while active:
            entries, index = Entries(table), []
            for growth in active:
                index.extend(growth.add_frontier(entries))
                growth.charge_nodes(self._runner.config, growth.size, growth.depth)
            previous, outputs = outputs, self._level_outputs(active)
            nodes = entries.batch(range(len(entries)))
            self._run(replace(nodes, states=previous.states, state_index=int64s(index)), outputs)
            active = self._advance(active, outputs)
        return {g.row: self._finish(g, None if g.failed else g.tree(), g.produced) for g in growths}

    def _text(
        self, growths: Sequence[Growth], table: PageTable, chain: ChainLevels | None = None
    ) -> DraftBatch:
        """Entries of what is not stored of each row; the last of each predicts."""
        entries, features, ends = Entries(table), [], []
        for growth in growths:
            first, tokens, own = self._memory.pending(growth.row)
            entries.add_text(growth.index, first, tokens)
            features.append(own)
            ends.append(len(entries) - 1)
            growth.charge_text(self._runner.config, len(tokens), first)
        return entries.batch(ends, _joined(features), chain)

    def _advance(self, growths: Sequence[Growth], outputs: DraftOutputs) -> list[Growth]:
        """Hang a pass's candidates into the trees; those that go on are returned."""
        ids, log_probs = outputs.ids.numpy(), outputs.log_probs.numpy()
        scores = outputs.scores.numpy()
        start = 0
        for growth in growths:
            part = slice(start, start + growth.size)
            start = part.stop
            growth.take((ids[part], log_probs[part], scores[part]), part.start)
        return [growth for growth in growths if growth.size]

    def _finish(self, growth: Growth, tree: TokenTree | None, produced: int) -> Draft:
        """The draft of a row; without a tree, numbers were not finite, and its stored entries are wiped."""
        passes, flops = self._memory.settle(growth.row)
        passes, flops = passes + growth.passes, flops + growth.flops
        if tree is None:
            self.faults += 1
            self._store.scrub(growth.row.pages)
            self._memory.drop(growth.row)
            tree = _root(growth.row)
        return Draft(tree, passes, flops, produced - tree.size)

    def _keep_up(self, rows: Sequence[Row], most: int) -> None:
        """Let no more than so many tokens of each row wait."""
        behind = [row for row in rows if self._memory.backlog(row) > most]
        for spans in _batches([(row, *self._memory.ready(row)) for row in behind]):
            self._catch_up(spans)

    def _catch_up(self, spans: Sequence[tuple[Row, int, int]]) -> None:
        """Compute and store entries of committed tokens ``[first, end)`` of rows."""
        origins = [self._memory.origin(row) for row, _, _ in spans]
        pages = [row.pages for row, _, _ in spans]
        entries, features = Entries(PageTable.of(pages, self._store.page_size, origins)), []
        for index, (row, first, end) in enumerate(spans):
            tokens, own = self._memory.take(row, first, end)
            entries.add_text(index, first, tokens)
            features.append(own)
        self._run(entries.batch([], _joined(features)), self._outputs([], 1))
        for (row, first, end), origin in zip(spans, origins, strict=True):
            self._memory.mark_stored(row, end)
            self._memory.owe(row, Growth.text_flops(self._runner.config, end - first, first - origin))

    def _level_outputs(self, growths: Sequence[Growth]) -> DraftOutputs:
        """Room for the candidates of all nodes that are expanded in a pass."""
        nodes = [(growth, growth.depth) for growth in growths for _ in range(growth.size)]
        return self._outputs(nodes, max(growth.width for growth in growths))

    def _outputs(self, nodes: Sequence[tuple[Growth, int]], width: int) -> DraftOutputs:
        """Room for the candidates of nodes, given with their depths."""
        wanted = len(nodes)
        return DraftOutputs(
            temperature=float64s([growth.temperature for growth, _ in nodes]),
            noise=int64s([growth.noise(depth) for growth, depth in nodes]),
            states=room((wanted, self._runner.config.hidden), np.float32),
            ids=room((wanted, width), np.int64),
            log_probs=room((wanted, width), np.float64),
            scores=room((wanted, width), np.float64),
        )

    def _run(self, batch: DraftBatch, outputs: DraftOutputs) -> None:
        cache = KvCache(self._store.keys[0], self._store.values[0], self._store.page_size)
        self._runner.run(batch, cache, outputs)


def _joined(features: Sequence[NDArray[np.float32]]) -> Tensor:
    """Features of several rows one after another."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(features)))


def _root(row: Row) -> TokenTree:
    return TokenTree.root(row.token(row.committed - 1))


def _batches(spans: Sequence[tuple[Row, int, int]]) -> Iterator[list[tuple[Row, int, int]]]:
    """Split spans of rows into passes of at most :data:`MAX_ENTRIES` entries."""
    batch: list[tuple[Row, int, int]] = []
    room = MAX_ENTRIES
    for row, first, end in spans:
        start = first
        while start < end:
            stop = min(end, start + room)
            batch.append((row, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield batch
                batch, room = [], MAX_ENTRIES
    if batch:
        yield batch
