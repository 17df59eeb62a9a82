"""The executor of the CPU: a whole pass in one call of the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specbatch_kernels.cpu import (
    AttentionKeys,
    DecoderBatch,
    DecoderOutputs,
    KvCache,
    PackedDecoder,
    Placement,
    ThreadPool,
    decoder_pass,
)
from torch import Tensor

from specbatch.cache import KVStore
from specbatch.step import Step


@dataclass(frozen=True, slots=True)
class CompiledExecutor:
    """A packed decoder, its K/V store and the threads that compute with them."""

    decoder: PackedDecoder
    store: KVStore
    pool: ThreadPool

    def forward(self, step: Step) -> Tensor:
        """One target pass: logits of the wanted tokens, float32 ``[S, vocab]``."""
        batch = DecoderBatch(
            tokens=step.tokens,
            placement=Placement(step.positions, step.slots),
            keys=attention_keys(step),
            wanted=step.wanted,
        )
        cache = KvCache(self.store.keys, self.store.values, self.store.page_size)
        logits = torch.empty((len(step.wanted), self.decoder.parts.head.rows))
        decoder_pass(self.decoder, batch, cache, DecoderOutputs(logits), self.pool)
        return logits


def attention_keys(step: Step) -> AttentionKeys:
    """Which keys every token of a step attends to, as the kernels take it."""
    counts = torch.tensor(step.row_starts).diff()
    none = torch.zeros(step.num_tokens + 1, dtype=torch.int32)
    return AttentionKeys(
        page_table=step.page_table.to(torch.int32),
        token_row=torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), counts),
        context_len=(step.positions + 1).to(torch.int32),
        extra_offsets=none,
        extra_positions=none[:0],
    )
