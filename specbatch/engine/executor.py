"""Where a step is computed: the contract, and the executor that does it with torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbatch.attention.base import Attention
from specbatch.cache import KVStore, PagedStore
from specbatch.hardware.threads import one_thread
from specbatch.models.decoder import Decoder
from specbatch.sampling import Draw, choose
from specbatch.step import PassOutput, Step
from specbatch.tensors import int64s


class Executor(Protocol):
    """Computes steps and owns the K/V store behind the page numbers."""

    @property
    def store(self) -> PagedStore:
        """Keys and values."""
        ...

    def forward(self, step: Step) -> PassOutput:
        """One target pass; its logits may be overwritten by the next one."""
        ...

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        """The next token behind some rows of logits; see :func:`specbatch.sampling.choose`.

        Args:
            logits: Of the last pass, float32 ``[wanted, vocab]``.
            places: Rows of them.
            draws: How the token behind each is chosen, as many.
        """
        ...


@dataclass(frozen=True, slots=True)
class TorchExecutor:
    """A decoder, its K/V store and an attention kernel on one device."""

    decoder: Decoder
    store: KVStore
    attention: Attention

    @torch.inference_mode()
    def forward(self, step: Step) -> PassOutput:
        """One target pass."""
        here = step.to(self.store.keys.device)
        return self.decoder.forward(here, self.store, self.attention)

    @torch.inference_mode()
    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        """The next token behind some rows of logits; see :func:`specbatch.sampling.choose`."""
        with one_thread():
            return choose(logits[int64s(places)], draws)
