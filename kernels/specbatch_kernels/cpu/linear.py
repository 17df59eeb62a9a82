"""Linear layers on packed weights (GGUF Q4_0, Q4_1, Q8_0 or float32) and their torch twins.

Weights stay in their quantised blocks. A matrix says what its inputs are multiplied as:

* ``float32``: weights are expanded to the exact float32 values they stand for, and every output is one
  chain of float32 multiply-adds over the inputs in ascending order;
* ``int8``: each block of 32 inputs is rounded to multiples of 1/127 of its largest magnitude. Products
  within a block are integers and added exactly, blocks follow each other in float32.

Either way the number of tokens and threads is no part of it: a row of the result never depends on its batch.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.norm import RmsNorm, rms_norm_reference
from specbatch_kernels.cpu.packing import BLOCK, PackedMatrix, native_matrix, unpack
from specbatch_kernels.cpu.pool import ThreadPool

# Numbers of the native enumeration.
_STORE, _ACCUMULATE, _GATE = 0, 1, 2
# A block whose largest magnitude is under this is taken for zeros.
_FAINTEST = 1e-30


def linear(
    x: torch.Tensor,
    matrix: PackedMatrix,
    out: torch.Tensor,
    pool: ThreadPool,
    *,
    norm: RmsNorm | None = None,
    accumulate: bool = False,
) -> None:
    """``out = norm(x) @ weights.T + bias``, or the same added to what ``out`` holds.

    Args:
        x: float32 [tokens, cols].
        matrix: From :func:`pack`.
        out: float32 [tokens, rows].
        pool: Threads and instruction set to compute with.
        norm: Norm of the inputs, None for the inputs as they are.
        accumulate: Add to ``out`` (a residual) instead of overwriting it.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or the matrix is gated.
    """
    if matrix.gated:
        raise ValueError("a gated matrix needs gated_linear")
    _run(x, matrix, out, pool, norm, _ACCUMULATE if accumulate else _STORE)


def gated_linear(
    x: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, pool: ThreadPool, *, norm: RmsNorm | None = None
) -> None:
    """``out = silu(y @ gate.T) * (y @ up.T)`` for ``y = norm(x)``.

    Args:
        x: float32 [tokens, cols].
        matrix: From :func:`pack_gated`.
        out: float32 [tokens, rows / 2], overwritten.
        pool: Threads and instruction set to compute with.
        norm: Norm of the inputs, None for the inputs as they are.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or the matrix is not gated.
    """
    if not matrix.gated:
        raise ValueError("gated_linear needs a matrix from pack_gated")
    _run(x, matrix, out, pool, norm, _GATE)


def _run(
    x: torch.Tensor,
    matrix: PackedMatrix,
    out: torch.Tensor,
    pool: ThreadPool,
    norm: RmsNorm | None,
    epilogue: int,
) -> None:
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens = x.shape[0]
    width = matrix.rows // 2 if matrix.gated else matrix.rows
    x_address = native.address("x", x, torch.float32, (tokens, matrix.cols))
    out_address = native.address("out", out, torch.float32, (tokens, width))
    weight = 0 if norm is None else native.address("norm", norm.weight, torch.float32, (matrix.cols,))
    eps = 0.0 if norm is None else norm.eps
    _native.linear(
        pool.handle, native_matrix(matrix), x_address, out_address, tokens, epilogue, (weight, eps)
    )


def linear_reference(
    x: torch.Tensor,
    matrix: PackedMatrix,
    out: torch.Tensor,
    pool: ThreadPool | None,
    *,
    norm: RmsNorm | None = None,
    accumulate: bool = False,
) -> None:
    """Twin of :func:`linear` in torch; computes in the type of ``x``."""
    result = _inputs(x, matrix, norm, pool) @ unpack(matrix).to(x.dtype).T
    if matrix.bias is not None:
        result += matrix.bias
    out.copy_(out + result if accumulate else result)


def gated_linear_reference(
    x: torch.Tensor,
    matrix: PackedMatrix,
    out: torch.Tensor,
    pool: ThreadPool | None,
    *,
    norm: RmsNorm | None = None,
) -> None:
    """Twin of :func:`gated_linear` in torch; computes in the type of ``x``."""
    gate, up = (_inputs(x, matrix, norm, pool) @ unpack(matrix).to(x.dtype).T).chunk(2, dim=-1)
    out.copy_(silu(gate) * up)


def _inputs(
    x: torch.Tensor, matrix: PackedMatrix, norm: RmsNorm | None, pool: ThreadPool | None
) -> torch.Tensor:
    """What is multiplied with the weights: normed and rounded where the layer does that."""
    y = x
    if norm is not None:
        y = torch.empty_like(x)
        rms_norm_reference(x, norm, y, pool)
    return y if matrix.activations == "float32" else round_inputs(y)


def round_inputs(x: torch.Tensor) -> torch.Tensor:
    """Multiples of 1/127 of the largest magnitude in each block of 32 inputs, nearest to what they were.

    Args:
        x: ``[tokens, cols]``; what multiple is found in float32, as the kernel does.
    """
    blocks = x.float().reshape(len(x), -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    largest = torch.where(largest >= _FAINTEST, largest, largest * 0.0)
    steps = torch.where(largest > 0, 127.0 / largest, 0.0)
    scale = (largest * torch.tensor(1.0 / 127.0)).to(x.dtype)
    rounded: torch.Tensor = (blocks * steps).round().to(x.dtype) * scale
    return rounded.reshape(x.shape)
