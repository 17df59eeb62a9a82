"""Attention through the compiled CPU kernel, which reads keys and values where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specbatch_kernels.cpu import AttentionKeys, KvCache, ThreadPool, paged_attention
from torch import Tensor

from specbatch.step import Step


@dataclass(frozen=True, slots=True)
class CompiledAttention:
    """Paged attention in C, float32.

    Attributes:
        pool: The kernel's own threads.
    """

    pool: ThreadPool

    @property
    def name(self) -> str:
        """Kernel and instruction set; the sets differ in the last bits."""
        return f"compiled-{self.pool.isa}"

    def prepare(self, step: Step) -> CompiledPass:
        """Index tensors for the kernel."""
        counts = torch.tensor(step.row_starts).diff()
        none = torch.zeros(step.num_tokens + 1, dtype=torch.int32)
        keys = AttentionKeys(
            page_table=step.page_table.to(torch.int32),
            token_row=torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), counts),
            context_len=(step.positions + 1).to(torch.int32),
            extra_offsets=none,
            extra_positions=none[:0],
        )
        return CompiledPass(keys, step.page_size, self.pool)


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """Attention of one step."""

    keys: AttentionKeys
    page_size: int
    pool: ThreadPool

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See :class:`specbatch.attention.base.AttentionPass`."""
        out = torch.empty_like(queries)
        cache = KvCache(keys, values, self.page_size)
        paged_attention(queries, cache, self.keys, queries.shape[-1] ** -0.5, out, self.pool)
        return out
