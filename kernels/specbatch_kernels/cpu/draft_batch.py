"""What goes into a draft pass and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbatch_kernels.cpu.attention import AttentionKeys
from specbatch_kernels.cpu.rotary import Placement

NOT_DRAFTED = -2
"""Stands for the candidate of an entry of a chain whose pass was not made."""


@dataclass(frozen=True, slots=True)
class ChainLevels:
    """Further passes of the same call: entry t of each continues candidate t of the pass before.

    All tensors but ``extra_offsets`` hold the levels one after another, N entries in total.

    Attributes:
        counts: Entries of each level, at least 1 and never more than in the level before.
        placement: Rotary positions and cache slots, int64 [N].
        token_row: Row of the page table of the batch, int32 [N].
        context_len: int32 [N], as in :class:`AttentionKeys`.
        extra_offsets: int32 [N + levels], counts + 1 for each level, which begin at 0.
        extra_positions: int32 [extras].
        least: float64 [wanted entries of the batch], log of a probability. Once the paths of all that would
            go on are less likely than this, no more passes are made.
    """

    counts: tuple[int, ...]
    placement: Placement
    token_row: torch.Tensor
    context_len: torch.Tensor
    extra_offsets: torch.Tensor
    extra_positions: torch.Tensor
    least: torch.Tensor

    @property
    def size(self) -> int:
        """N."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The entries of one pass; either ``features`` or ``states`` and ``state_index`` are given.

    Attributes:
        tokens: Target token of each entry, int64 [T].
        placement: Rotary positions and cache slots of the entries.
        keys: What each entry attends to; the keys of this pass's entries are stored before they are read.
        wanted: int64 [S] entries (indices into T) that predict.
        features: float32 [T, features, d] of the target at the token before each entry's.
        states: float32 [N, d] given back by earlier entries.
        state_index: int64 [T] row of ``states`` that each entry continues.
        chain: What follows in the same call. The outputs then have S + N rows and a width of 1.
    """

    tokens: torch.Tensor
    placement: Placement
    keys: AttentionKeys
    wanted: torch.Tensor
    features: torch.Tensor | None = None
    states: torch.Tensor | None = None
    state_index: torch.Tensor | None = None
    chain: ChainLevels | None = None

    @property
    def predictions(self) -> int:
        """Rows of the outputs: wanted entries of the first pass, and all entries of the others."""
        return len(self.wanted) + (0 if self.chain is None else self.chain.size)


@dataclass(frozen=True, slots=True)
class DraftOutputs:
    """How the wanted entries choose candidates, and what a pass writes for them.

    Candidates are ranked by log probability; at a temperature above 0, by log probability plus
    Gumbel noise of the target token. Where any logit is not finite there are none.

    Attributes:
        temperature: float64 [S]; 0 ranks by probability at temperature 1.
        noise: int64 [S] state of the row's stream, bits as in :class:`SamplingRow`; unused at 0.
        states: float32 [S, d], to be continued by deeper entries.
        ids: int64 [S, width] target tokens, best first, then -1; ``NOT_DRAFTED`` where there was no pass.
        log_probs: float64 [S, width] log of the head's probability (at that temperature).
        scores: float64 [S, width] what the candidates are ranked by.
        logits: float32 [S, draft vocabulary]; None when not needed, and None with a chain.
    """

    temperature: torch.Tensor
    noise: torch.Tensor
    states: torch.Tensor
    ids: torch.Tensor
    log_probs: torch.Tensor
    scores: torch.Tensor
    logits: torch.Tensor | None = None
