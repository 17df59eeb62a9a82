"""Embeddings out of packed matrices and the most likely token, on CPU, and the torch twins."""

from __future__ import annotations

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.packing import PackedMatrix, native_matrix, unpack
from specbatch_kernels.cpu.pool import ThreadPool


def lookup(index: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, pool: ThreadPool) -> None:
    """Rows of a packed matrix: the embedding of a model whose LM head is the same matrix.

    Args:
        index: int64 [tokens] rows.
        matrix: Not gated; its bias plays no part.
        out: float32 [tokens, cols], overwritten with the exact weights.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, no such row, or the matrix is gated.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    if matrix.gated:
        raise ValueError("a gated matrix has no rows to look up")
    tokens = index.shape[0]
    index_address = native.address("index", index, torch.int64, (tokens,))
    out_address = native.address("out", out, torch.float32, (tokens, matrix.cols))
    _native.lookup(pool.handle, native_matrix(matrix), index_address, out_address, tokens)


def lookup_reference(
    index: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, pool: ThreadPool | None
) -> None:
    """Twin of :func:`lookup` in torch."""
    out.copy_(unpack(matrix)[index])


def argmax(x: torch.Tensor, out: torch.Tensor, pool: ThreadPool) -> None:
    """Index of the largest element of every row, the lowest of several; -1 where a row holds a NaN.

    Args:
        x: float32 [tokens, width], width at least 1.
        out: int64 [tokens], overwritten.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, width = x.shape
    if width < 1:
        raise ValueError("a row without elements has no largest one")
    x_address = native.address("x", x, torch.float32, (tokens, width))
    out_address = native.address("out", out, torch.int64, (tokens,))
    _native.argmax(pool.handle, x_address, out_address, tokens, width)


def argmax_reference(x: torch.Tensor, out: torch.Tensor, pool: ThreadPool | None) -> None:
    """Twin of :func:`argmax` in torch."""
    first = (x == x.amax(-1, keepdim=True)).int().argmax(-1)
    out.copy_(torch.where(x.isnan().any(-1), -1, first))
