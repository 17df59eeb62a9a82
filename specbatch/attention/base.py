"""The contract of every attention kernel."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specbatch.step import Step


class AttentionPass(Protocol):
    """Attention of one step, the same for all its layers."""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Each token attends to its context and its extra positions, in that order.

        Args:
            queries: ``[T, num_heads, head_dim]``, rotated.
            keys: The layer's store, ``[num_slots, num_kv_heads, head_dim]``; this step's tokens
                are already in it.
            values: Same shape.

        Returns:
            ``[T, num_heads, head_dim]``.
        """
        ...


class Attention(Protocol):
    """A kernel family."""

    @property
    def name(self) -> str:
        """Kernel and what may change its last bits; part of a run's identity."""
        ...

    def prepare(self, step: Step) -> AttentionPass:
        """Do what all layers share (indices, masks) once."""
        ...
