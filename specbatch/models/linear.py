"""The linear layer behind one small interface: ``y = x Wᵀ (+ b)``.

Exactness needs a row of ``y`` to have the same bits whatever other rows are in ``x``. Ordinary BLAS
picks its kernel by the number of rows and does not give that. oneDNN's packed inner product does on
the processors we know; :func:`packed_linear_is_invariant` checks it on this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear


class Linear(Protocol):
    """One linear layer with its weights inside."""

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, in_features]`` → ``[rows, out_features]``."""
        ...


LinearFactory = Callable[[Tensor, "Tensor | None"], Linear]
"""Builds a layer from weight ``[out_features, in_features]`` and bias ``[out_features]``."""


class PlainLinear:
    """``torch.nn.functional.linear``: the reference, and the layer of devices other than the CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, in_features]`` → ``[rows, out_features]``."""
        return linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's prepacked inner product, float32 on CPU.

    A single row goes to a matrix-vector kernel that is slower than the one for two rows, so a
    lone row is computed with a row of zeros beside it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, in_features]`` → ``[rows, out_features]``."""
        alone = x.shape[0] == 1
        rows = torch.cat((x, torch.zeros_like(x))) if alone else x
        y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return y[:1] if alone else y


class RowByRowLinear:
    """Matrix times one row at a time: slow, and independent of the batch on any machine."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, in_features]`` → ``[rows, out_features]``."""
        return torch.cat([linear(row, self._weight, self._bias) for row in x.unsqueeze(1)])


def choose_linear(device: torch.device, shapes: set[tuple[int, int]]) -> LinearFactory:
    """The fastest layer that is exact here.

    Args:
        device: Where the weights will live; exactness is promised on the CPU only.
        shapes: ``(out_features, in_features)`` of the model's layers.
    """
    if device.type != "cpu":
        return PlainLinear
    if torch.backends.mkldnn.is_available() and all(map(packed_linear_is_invariant, shapes)):  # type: ignore[no-untyped-call]
        return PackedLinear
    return RowByRowLinear


def packed_linear_is_invariant(shape: tuple[int, int]) -> bool:
    """Whether row bits stay the same for a spread of batch sizes and places within the batch.

    Tall layers (the LM head) are probed on their first 4,096 outputs to keep the start short.
    """
    generator = torch.Generator().manual_seed(0)
    out_features, in_features = min(shape[0], 4096), shape[1]
    layer = PackedLinear(torch.randn((out_features, in_features), generator=generator), None)
    x = torch.randn((96, in_features), generator=generator)
    whole = layer(x)
    starts_and_sizes = [(0, 1), (95, 1), (1, 2), (7, 3), (11, 5), (40, 17), (30, 64)]
    return all(
        torch.equal(layer(x[start : start + size]), whole[start : start + size])
        for start, size in starts_and_sizes
    )
