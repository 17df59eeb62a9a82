"""The paged K/V store: one slot for each token, one table for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class KVStore:
    """Keys and values of all layers.

    Slot ``page * page_size + i`` holds token ``i`` of a page. The store begins as zeros: masked
    slots take part in sums with weight 0, which only finite content survives.

    Args:
        shape: ``(num_layers, num_slots, num_kv_heads, head_dim)``.
        dtype: Storage type.
        device: Where it lives.

    Attributes:
        keys: ``[num_layers, num_slots, num_kv_heads, head_dim]``.
        values: Same shape.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)

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

    def scrub(self, pages: Sequence[int], page_size: int) -> None:
        """Zero whole pages, so that a NaN in them cannot reach their next owner."""
        for page in pages:
            span = slice(page * page_size, (page + 1) * page_size)
            self.keys[:, span].zero_()
            self.values[:, span].zero_()

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token occupies in all layers."""
        return bytes_per_token(tuple(self.keys.shape), self.keys.dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost no memory on the CPU until they are used (``torch.zeros`` writes them all)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)


def bytes_per_token(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token; ``shape`` as for :class:`KVStore`."""
    layers, _, heads, head_dim = shape
    return 2 * layers * heads * head_dim * dtype.itemsize
