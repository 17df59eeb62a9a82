"""Where a step is computed: the contract, and the executor that does it with torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbatch.attention.base import Attention
from specbatch.cache import KVStore, PagedStore
from specbatch.models.decoder import Decoder
from specbatch.step import Step


class Executor(Protocol):
    """Computes steps and owns the K/V store behind the page numbers."""

    @property
    def store(self) -> PagedStore:
        """Keys and values."""
        ...

    def forward(self, step: Step) -> Tensor:
        """One target pass: logits of the wanted tokens, float32 ``[S, vocab]``."""
        ...


@dataclass(frozen=True, slots=True)
class TorchExecutor:
    """A decoder, its K/V store and an attention kernel on one device."""

    decoder: Decoder
    store: KVStore
    attention: Attention

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """One target pass: logits of the wanted tokens, float32 ``[S, vocab]``."""
        here = step.to(self.store.keys.device)
        return self.decoder.forward(here, self.store, self.attention)
