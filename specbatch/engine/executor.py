"""Where a step is computed: the contract, and the executor that does it with torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbatch.attention.base import Attention
from specbatch.cache import KVStore
from specbatch.models.decoder import Decoder
from specbatch.step import Step


class Executor(Protocol):
    """Computes steps and owns the K/V store behind the page numbers."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages in the store, the null page included."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token."""
        ...

    def forward(self, step: Step) -> Tensor:
        """One target pass: logits of the wanted tokens, float32 ``[S, vocab]``."""
        ...

    def scrub(self, pages: Sequence[int]) -> None:
        """Forget the content of pages that may hold NaN."""
        ...


@dataclass(frozen=True, slots=True)
class TorchExecutor:
    """A decoder, its K/V store and an attention kernel on one device."""

    decoder: Decoder
    store: KVStore
    attention: Attention
    page_size: int

    @property
    def num_pages(self) -> int:
        """Pages in the store, the null page included."""
        return self.store.keys.shape[1] // self.page_size

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token."""
        return self.store.bytes_per_token

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """One target pass: logits of the wanted tokens, float32 ``[S, vocab]``."""
        here = step.to(self.store.keys.device)
        return self.decoder.forward(here, self.store, self.attention)

    @torch.inference_mode()
    def scrub(self, pages: Sequence[int]) -> None:
        """Forget the content of pages that may hold NaN."""
        self.store.scrub(pages, self.page_size)
