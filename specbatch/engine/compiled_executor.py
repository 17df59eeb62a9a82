"""The executor of the CPU: a whole pass in one call of the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from specbatch_kernels.cpu import (
    AttentionKeys,
    DecoderBatch,
    DecoderOutputs,
    KvCache,
    PackedDecoder,
    Placement,
    SamplingRows,
    ThreadPool,
    decoder_pass,
    sample,
)
from torch import Tensor

from specbatch.cache import KVStore
from specbatch.engine.scratch import Scratch
from specbatch.sampling import Draw
from specbatch.step import PassOutput, Step


@dataclass(frozen=True, slots=True)
class CompiledExecutor:
    """A packed decoder, its K/V store and the threads that compute with them.

    Attributes:
        logits: Where a pass leaves its logits.
    """

    decoder: PackedDecoder
    store: KVStore
    pool: ThreadPool
    logits: Scratch = field(default_factory=Scratch)

    def forward(self, step: Step) -> PassOutput:
        """One target pass; its logits are overwritten by the next one."""
        batch = DecoderBatch(
            tokens=step.tokens,
            placement=Placement(step.positions, step.slots),
            keys=attention_keys(step),
            wanted=step.wanted,
        )
        cache = KvCache(self.store.keys, self.store.values, self.store.page_size)
        parts = self.decoder.parts
        logits = self.logits.rows(len(step.wanted), parts.head.rows)
        features = None
        if parts.captured:
            features = torch.empty((len(parts.captured), step.num_tokens, self.decoder.hidden))
        decoder_pass(self.decoder, batch, cache, DecoderOutputs(logits, features), self.pool)
        return PassOutput(logits, features)

    def choose(self, logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
        """The next token of every row of logits; see :func:`specbatch.sampling.choose`."""
        chosen = torch.empty(len(draws), dtype=torch.int64)
        sample(logits, sampling_rows(draws), chosen, self.pool)
        return [None if token < 0 else token for token in chosen.tolist()]


def sampling_rows(draws: Sequence[Draw]) -> SamplingRows:
    """How every row samples, as the kernels take it."""
    params = [draw.params for draw in draws]
    lengths = [0, *(len(draw.history) for draw in draws)]
    greedy = [each.temperature == 0.0 for each in params]  # its noise is 0: no state is looked up
    states = [0 if g else draw.stream.state(draw.position) for g, draw in zip(greedy, draws, strict=True)]
    return SamplingRows(
        temperature=torch.tensor([each.temperature for each in params], dtype=torch.float64),
        penalty=torch.tensor([each.repetition_penalty for each in params], dtype=torch.float64),
        top_p=torch.tensor([each.top_p for each in params], dtype=torch.float64),
        min_p=torch.tensor([each.min_p for each in params], dtype=torch.float64),
        top_k=torch.tensor([each.top_k for each in params], dtype=torch.int64),
        state=torch.from_numpy(np.array(states, dtype=np.uint64).view(np.int64)),
        history_offsets=torch.tensor(lengths).cumsum(0),
        history=torch.cat([draw.history for draw in draws]),
    )


def attention_keys(step: Step) -> AttentionKeys:
    """Which keys every token of a step attends to, as the kernels take it.

    The kernels share the loads of all keys between tokens that have a context only, so where no tree
    branches the drafted tokens are given to them as one.
    """
    counts = torch.tensor(step.row_starts).diff()
    context, offsets, extra = step.context_len, step.extra_offsets, step.extra_positions
    if step.linear:
        context, offsets, extra = step.key_counts, torch.zeros_like(offsets), extra[:0]
    return AttentionKeys(
        page_table=step.page_table.to(torch.int32),
        token_row=torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), counts),
        context_len=context,
        extra_offsets=offsets,
        extra_positions=extra,
    )
