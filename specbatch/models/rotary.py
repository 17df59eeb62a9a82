"""Rotary position embedding (Su et al. 2021), half-split layout, with the scalings we support."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specbatch.models.config import ModelConfig, RopeScaling


def rotary_table(config: ModelConfig) -> Tensor:
    """Cosines and sines of every position.

    Returns:
        float32 ``[max_context, 2, head_dim / 2]``: cosines, then sines.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.arange(config.max_context, dtype=torch.float32).unsqueeze(1) * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each head by its token's position.

    Args:
        x: ``[T, heads, head_dim]``.
        table: Rows of :func:`rotary_table` for these tokens, ``[T, 2, head_dim / 2]``.

    Returns:
        Same shape and type as ``x``.
    """
    cos, sin = table.unsqueeze(2).unbind(1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Position interpolation (Chen et al. 2023) or the banded form of Llama 3.1."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies
