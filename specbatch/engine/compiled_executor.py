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
    SamplingRow,
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
        if not parts.captured:
            decoder_pass(self.decoder, batch, cache, DecoderOutputs(logits), self.pool)
            return PassOutput(logits)
        shape = (len(parts.captured), step.num_tokens, self.decoder.hidden)
        features = np.empty(shape, dtype=np.float32)
        outputs = DecoderOutputs(logits, torch.from_numpy(features))
        decoder_pass(self.decoder, batch, cache, outputs, self.pool)
        return PassOutput(logits, features)

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        """The next token behind some rows of logits; see :func:`specbatch.sampling.choose`."""
        rows = [sampling_row(place, draw) for place, draw in zip(places, draws, strict=True)]
        return [None if token < 0 else token for token in sample(logits, rows, self.pool)]


def sampling_row(place: int, draw: Draw) -> SamplingRow:
    """How the token behind a row of logits is chosen, as the kernels take it."""
    params = draw.params
    return SamplingRow(
        place,
        temperature=params.temperature,
        penalty=params.repetition_penalty,
        top_p=params.top_p,
        min_p=params.min_p,
        top_k=params.top_k,
        # A greedy row's noise is 0: no state is looked up.
        state=0 if params.temperature == 0.0 else draw.stream.state(draw.position),
        history=draw.history,
    )


def attention_keys(step: Step) -> AttentionKeys:
    """Which keys every token of a step attends to, as the kernels take it."""
    return AttentionKeys(
        page_table=step.page_table,
        token_row=step.token_rows,
        context_len=step.context_len,
        extra_offsets=step.extra_offsets,
        extra_positions=step.extra_positions,
    )
