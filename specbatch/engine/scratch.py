"""Memory that is used again: fresh pages cost more to touch for the first time than the numbers in them."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """A float32 matrix as high as ever needed, on the CPU."""

    def __init__(self) -> None:
        self._all = self._given = torch.empty((0, 0))

    def rows(self, count: int, width: int) -> Tensor:
        """Room for ``[count, width]``; what an earlier call returned is overwritten."""
        if self._given.shape != (count, width):
            if self._all.shape[0] < count or self._all.shape[1] != width:
                self._all = torch.empty((count, width))
            self._given = self._all[:count]
        return self._given
