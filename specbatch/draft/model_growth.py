"""One row's tree while a draft model grows it: where its nodes are stored, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbatch.draft.base import DraftRequest, TreeShape
from specbatch.draft.head_beam import Beam, Floats, Ints
from specbatch.draft.head_entries import Entries
from specbatch.models.config import ModelConfig
from specbatch.randomness import gumbel
from specbatch.step import Step
from specbatch.tree import TokenTree

SAMPLED_CANDIDATES = 64
"""Likeliest tokens among which a sampled row's noise decides; drawing it for all costs more than it gains."""


@dataclass(frozen=True, slots=True)
class Costs:
    """FLOPs of a decoder by formula, a multiply-add being two.

    Attributes:
        per_token: Matrices of the layers.
        per_key: Scores and mixing of one token with one key.
        per_logits: The output projection of one token.
    """

    per_token: float
    per_key: float
    per_logits: float

    @classmethod
    def of(cls, config: ModelConfig) -> Costs:
        """Those of a model."""
        heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        weights = config.hidden_size * (2 * heads + 2 * kv_heads + 3 * config.intermediate_size)
        return cls(
            per_token=2.0 * config.num_layers * weights,
            per_key=4.0 * config.num_layers * heads,
            per_logits=2.0 * config.vocab_size * config.hidden_size,
        )

    def text(self, first: int, end: int) -> float:
        """Of committed tokens at positions ``first … end - 1``."""
        keys = (end * (end + 1) - first * (first + 1)) // 2
        return self.per_token * (end - first) + self.per_key * keys


class Growth:
    """A tree and the places of its expanded nodes.

    Args:
        index: Row of the page table.
        request: The row and what is asked for.
        levels: Levels that can be drafted, at least 1.
        first_place: Row position of the first place for nodes.
        costs: Of the draft model.

    Attributes:
        failed: The model's output was not finite.
        passes: Passes the row took part in.
        flops: Their operations.
    """

    def __init__(
        self, index: int, request: DraftRequest, levels: int, first_place: int, costs: Costs
    ) -> None:
        self.index, self.request, self.row = index, request, request.row
        self.failed, self.passes, self.flops = False, 0, 0.0
        self._temperature = request.row.prompt.params.temperature
        self._root = request.row.committed - 1
        self._costs = costs
        shape = TreeShape(levels, request.shape.width, request.shape.nodes)
        self._beam = Beam(self.row.token(self._root), shape, self._temperature > 0.0)
        self._next_place = first_place
        self._lineages: dict[int, list[int]] = {0: []}

    @property
    def size(self) -> int:
        """Nodes whose candidates are due; none when the tree is complete."""
        return len(self._beam.frontier)

    def tree(self) -> TokenTree:
        """What has grown; nothing where the model failed."""
        return TokenTree.root(self._beam.token(0)) if self.failed else self._beam.tree()

    def add_text(self, entries: Entries, first: int) -> list[int]:
        """Add the committed tokens from ``first`` on to a pass; the entry whose logits are due."""
        self._charge(self._costs.text(first, self._root + 1))
        entries.add_text(self.index, first, self.row.tokens(first, self._root + 1))
        return [len(entries) - 1]

    def add_frontier(self, entries: Entries) -> list[int]:
        """Add the nodes to be expanded to a pass; the entries whose logits are due, which is all of them."""
        beam, start = self._beam, len(entries)
        keys = self._root + 1 + beam.depth
        self._charge(self.size * (self._costs.per_token + self._costs.per_key * keys))
        for node in beam.frontier:
            lineage = self._lineages[node] = [*self._lineages[beam.parent(node)], self._next_place]
            self._next_place += 1
            position = self._root + beam.depth
            entries.add_node(self.index, beam.token(node), position, self._root + 1, lineage)
        return list(range(start, len(entries)))

    def take(self, logits: Tensor) -> None:
        """Hang the likeliest tokens behind the frontier into the tree, and move it down.

        Args:
            logits: Of the frontier's nodes, float32 ``[frontier, vocabulary]``.
        """
        if not bool(torch.isfinite(logits.max(dim=-1).values).all()):
            self.failed = True
            self._beam.frontier = []
            return
        self._beam.grow(*self._candidates(logits))

    def _candidates(self, logits: Tensor) -> tuple[Ints, Floats, Floats]:
        """Ids, log probabilities and ranking scores of each node's best tokens, best first."""
        width = min(self.request.shape.width, logits.shape[-1])
        if self._temperature == 0.0:
            top, ids = logits.topk(width)
            likely: Floats = (top - logits.logsumexp(-1, keepdim=True)).double().cpu().numpy()
            likely = np.minimum(likely, 0.0)
            return ids.cpu().numpy(), likely, likely
        # Subtracting first: divided by a temperature of 1e-310, the largest logit would be infinite.
        scaled = (logits.double() - logits.max(dim=-1, keepdim=True).values) / self._temperature
        top, found = scaled.topk(min(max(width, SAMPLED_CANDIDATES), logits.shape[-1]))
        log_probs = (top - scaled.logsumexp(-1, keepdim=True)).clamp(max=0.0).cpu()
        found = found.cpu()
        position = self._root + 1 + self._beam.depth
        noise = gumbel(self.request.stream, position, found.flatten()).view_as(found)
        scores, order = (log_probs + noise).topk(width)
        picked = (found.gather(-1, order), log_probs.gather(-1, order), scores)
        ids_, probs_, scores_ = (part.numpy() for part in picked)
        return ids_, probs_, scores_

    def _charge(self, flops: float) -> None:
        self.passes += 1
        self.flops += flops + self.size * self._costs.per_logits


def step_of(entries: Entries, wanted: Sequence[int]) -> Step:
    """A pass over entries, as executors take it.

    Args:
        entries: In the order of their rows; rows of the table without entries take no part.
        wanted: Entries whose logits are due.
    """
    batch = entries.batch(wanted)
    placement, keys = batch.placement, batch.keys
    rows, nodes = np.array(entries.rows), np.array(entries.extra_counts) > 0
    starts = np.searchsorted(rows, np.arange(len(entries.table.rows) + 1))
    drafted = np.bincount(rows[nodes], minlength=len(entries.table.rows))
    return Step(
        tokens=batch.tokens,
        positions=placement.positions,
        slots=placement.slots,
        row_starts=tuple(starts.tolist()),
        text_ends=tuple((starts[1:] - drafted).tolist()),
        token_rows=keys.token_row,
        page_table=keys.page_table,
        page_size=entries.table.page_size,
        wanted=batch.wanted,
        context_len=keys.context_len,
        extra_offsets=keys.extra_offsets,
        extra_positions=keys.extra_positions,
    )
