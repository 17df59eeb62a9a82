"""The paged K/V store: one slot for each token, one table for each layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class PagedStore(Protocol):
    """What the page numbers of :class:`specbatch.pages.PagePool` stand for."""

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
        """Bytes that one token occupies."""
        ...

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero whole pages, so that a NaN in them cannot reach their next owner."""
        ...

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy tokens from slot to slot; what is at the sources before any copy counts."""
        ...


@dataclass(frozen=True, slots=True)
class KVStore:
    """Keys and values of all layers.

    Slot ``page * page_size + i`` holds token ``i`` of a page. The store begins as zeros: masked
    slots take part in sums with weight 0, which only finite content survives.

    Attributes:
        keys: ``[num_layers, num_slots, num_kv_heads, head_dim]``.
        values: Same shape.
        page_size: Tokens in a page.
    """

    keys: Tensor
    values: Tensor
    page_size: int

    @classmethod
    def zeros(
        cls, shape: tuple[int, int, int, int], page_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVStore:
        """An empty store of shape ``(num_layers, num_pages, num_kv_heads, head_dim)``."""
        layers, pages, heads, head_dim = shape
        slots = (layers, pages * page_size, heads, head_dim)
        return cls(_zeros(slots, dtype, device), _zeros(slots, dtype, device), page_size)

    @property
    def num_pages(self) -> int:
        """Pages in the store, the null page included."""
        return self.keys.shape[1] // self.page_size

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token occupies in all layers."""
        layers, _, heads, head_dim = self.keys.shape
        return bytes_per_token((layers, heads, head_dim), self.keys.dtype)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store tokens.

        Args:
            layer: Layer number.
            slots: int64 ``[T]``, all different.
            keys: ``[T, num_kv_heads, head_dim]``.
            values: Same shape.
        """
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero whole pages, so that a NaN in them cannot reach their next owner."""
        for page in pages:
            span = slice(page * self.page_size, (page + 1) * self.page_size)
            self.keys[:, span].zero_()
            self.values[:, span].zero_()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy tokens from slot to slot, in all layers; what is at the sources before any copy counts.

        Args:
            sources: Slots to read.
            targets: Slots to write, as many, all different.
        """
        read, write = (torch.tensor(slots, device=self.keys.device) for slots in (sources, targets))
        self.keys.index_copy_(1, write, self.keys.index_select(1, read))
        self.values.index_copy_(1, write, self.values.index_select(1, read))


def bytes_per_token(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token of ``(num_layers, num_kv_heads, head_dim)``."""
    return 2 * math.prod(shape) * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost no memory on the CPU until they are used (``torch.zeros`` writes them all).

    Plainly mapped, for numpy would ask for large pages: every layer would begin with some, which takes
    longer than the rest of a small job's first pass, and passes are no faster for it.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)  # nobody else's, not even a child's
    except OSError as error:
        raise MemoryError(f"{size:,} bytes for keys and values: {error}") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)
