"""RMSNorm on CPU and its torch twin."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.pool import ThreadPool


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Parameters of an RMSNorm (Zhang & Sennrich 2019): ``x / sqrt(mean(x²) + eps) * weight``.

    Attributes:
        weight: float32 [width].
        eps: Added to the mean square.
    """

    weight: torch.Tensor
    eps: float


def rms_norm(x: torch.Tensor, norm: RmsNorm, out: torch.Tensor, pool: ThreadPool) -> None:
    """Norm every row of ``x``.

    Args:
        x: float32 [tokens, width].
        norm: Weight and eps.
        out: float32 [tokens, width], overwritten; may be ``x``.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, width = x.shape
    _native.rms_norm(
        pool.handle,
        native.address("x", x, torch.float32, (tokens, width)),
        native.address("weight", norm.weight, torch.float32, (width,)),
        native.address("out", out, torch.float32, (tokens, width)),
        tokens,
        width,
        norm.eps,
    )


def rms_norm_reference(x: torch.Tensor, norm: RmsNorm, out: torch.Tensor, pool: ThreadPool | None) -> None:
    """Twin of :func:`rms_norm` in torch; computes in the type of ``x``; any number of leading axes."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
    out.copy_(x * scale * norm.weight)
