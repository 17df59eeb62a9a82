"""Small tensors on the CPU, made by way of arrays: torch's own ways take several times as long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def int64s(values: Sequence[int]) -> Tensor:
    """int64 ``[len(values)]``."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def int32s(values: Sequence[int]) -> Tensor:
    """int32 ``[len(values)]``."""
    return torch.from_numpy(np.array(values, dtype=np.int32))


def float64s(values: Sequence[float]) -> Tensor:
    """float64 ``[len(values)]``."""
    return torch.from_numpy(np.array(values, dtype=np.float64))


def room(shape: tuple[int, ...], dtype: type[np.generic]) -> Tensor:
    """A tensor that holds anything."""
    return torch.from_numpy(np.empty(shape, dtype=dtype))
