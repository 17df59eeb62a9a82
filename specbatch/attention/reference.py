"""Attention spelt out: one token at a time, keys in logical order, in blocks of fixed size.

Slow, obvious, and independent of batch, page size, slots and padding on every machine, because no
operation here sees more than one token's keys and every sum has a fixed shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from specbatch.step import Step

BLOCK = 64
"""Keys in a block."""


class ReferenceAttention:
    """The slow twin of every other kernel."""

    @property
    def name(self) -> str:
        """Which kernel this is."""
        return "reference"

    def prepare(self, step: Step) -> ReferencePass:
        """Keep the step; nothing is precomputed."""
        return ReferencePass(step)


@dataclass(frozen=True, slots=True)
class ReferencePass:
    """Attention of one step."""

    step: Step

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See :class:`specbatch.attention.base.AttentionPass`."""
        out = torch.empty_like(queries)
        starts = self.step.row_starts
        for row, (first, end) in enumerate(pairwise(starts)):
            for token in range(first, end):
                slots = self._slots(row, token)
                out[token] = attend_one(queries[token], keys[slots], values[slots])
        return out

    def _slots(self, row: int, token: int) -> Tensor:
        """Slots of a token's keys in logical order, int64 ``[keys]``."""
        step = self.step
        context = torch.arange(int(step.context_len[token]), device=step.page_table.device)
        extra = step.extra_positions[step.extra_offsets[token] : step.extra_offsets[token + 1]]
        positions = torch.cat([context, extra.long()])
        return step.page_table[row, positions // step.page_size] * step.page_size + positions % step.page_size


def attend_one(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one token.

    Args:
        query: ``[num_heads, head_dim]``.
        keys: ``[n, num_kv_heads, head_dim]`` in logical order.
        values: Same shape.

    Returns:
        ``[num_heads, head_dim]``.
    """
    num_heads, head_dim = query.shape
    length, num_kv_heads, _ = keys.shape
    grouped = query.view(num_kv_heads, num_heads // num_kv_heads, 1, head_dim)
    scores = (grouped * keys.permute(1, 0, 2).unsqueeze(1)).sum(-1) * head_dim**-0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(grouped[..., 0, :1])
    mixed = torch.zeros_like(grouped[..., 0, :])
    for start in range(0, length, BLOCK):
        block = weights.new_zeros((*weights.shape[:2], BLOCK))
        chunk = weights[..., start : start + BLOCK]
        block[..., : chunk.shape[-1]] = chunk
        content = values.new_zeros((BLOCK, num_kv_heads, head_dim))
        content[: chunk.shape[-1]] = values[start : start + BLOCK]
        total = total + block.sum(-1, keepdim=True)
        mixed = mixed + (block.unsqueeze(-1) * content.permute(1, 0, 2).unsqueeze(1)).sum(2)
    return (mixed / total).reshape(num_heads, head_dim)
