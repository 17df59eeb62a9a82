"""Linear layers on packed weights (GGUF Q4_0, Q4_1, Q8_0 or float32) and their torch twins.

Weights stay in their quantised blocks and are expanded to the exact float32 values they stand for
when they are used. Every output is one chain of float32 multiply-adds over the inputs in ascending
order, whatever the number of tokens and threads: a row of the result never depends on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch.nn.functional import silu

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.memory import WeightArena
from specbatch_kernels.cpu.norm import RmsNorm, rms_norm_reference
from specbatch_kernels.cpu.pool import ThreadPool

WeightType = Literal["f32", "q4_0", "q4_1", "q8_0"]

TILE: Final = 16
"""Output rows that are packed together."""
BLOCK: Final = 32
"""Inputs that share a scale in the quantised types."""

# Numbers of the native enumerations.
_TYPES: Final[dict[WeightType, int]] = {"f32": 0, "q4_0": 1, "q4_1": 2, "q8_0": 3}
_STORE, _ACCUMULATE, _GATE = 0, 1, 2
# Bytes of one block of 32 weights in a GGUF file; of one weight for float32.
_SOURCE_BYTES: Final[dict[WeightType, int]] = {"f32": 4, "q4_0": 18, "q4_1": 20, "q8_0": 34}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Weights of a linear layer as the kernels read them.

    Attributes:
        data: uint8, one dimension, laid out as ``csrc/matrix.h`` describes.
        rows: Outputs.
        cols: Inputs.
        kind: How the weights are stored.
        bias: float32 [rows], or None.
        gated: Made by :func:`pack_gated`: gate and up rows alternate in groups of eight.
    """

    data: torch.Tensor
    rows: int
    cols: int
    kind: WeightType
    bias: torch.Tensor | None = None
    gated: bool = False


def source_row_bytes(kind: WeightType, cols: int) -> int:
    """Bytes of one row of ``cols`` weights as GGUF stores it.

    Raises:
        ValueError: A quantised row is not made of whole blocks.
    """
    if kind == "f32":
        return 4 * cols
    if cols % BLOCK:
        raise ValueError(f"{kind} rows are made of blocks of {BLOCK} weights, {cols} is not a multiple")
    return cols // BLOCK * _SOURCE_BYTES[kind]


def pack(
    source: torch.Tensor,
    kind: WeightType,
    bias: torch.Tensor | None = None,
    *,
    arena: WeightArena | None = None,
) -> PackedMatrix:
    """Repack a matrix for :func:`linear`.

    Args:
        source: float32 [rows, cols] for ``"f32"``, else uint8 [rows, bytes per row] as in a GGUF file.
        kind: What ``source`` holds.
        bias: float32 [rows], added to the result.
        arena: Where the packed weights go; one arena for a whole model makes its passes faster.

    Raises:
        ValueError: Type or shape of an argument do not fit.
    """
    rows = source.shape[0]
    row_map = torch.full((-(-rows // TILE) * TILE,), -1, dtype=torch.int32)
    row_map[:rows] = torch.arange(rows, dtype=torch.int32)
    if bias is not None:
        native.address("bias", bias, torch.float32, (rows,))
    data, cols = _pack(source, kind, row_map, arena or WeightArena(0))
    return PackedMatrix(data, rows, cols, kind, bias)


def pack_gated(
    gate: torch.Tensor, up: torch.Tensor, kind: WeightType, *, arena: WeightArena | None = None
) -> PackedMatrix:
    """Repack the two matrices of a gated MLP for :func:`gated_linear`; arguments as in :func:`pack`.

    Raises:
        ValueError: The matrices have different shapes, or do not fit ``kind``.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must have the same shape")
    half = gate.shape[0]
    groups = -(-half // (TILE // 2))
    index = torch.arange(groups * TILE // 2, dtype=torch.int32)
    index[half:] = -1
    both = torch.stack([index, torch.where(index < 0, index, index + half)])
    row_map = both.reshape(2, groups, TILE // 2).transpose(0, 1).flatten().contiguous()
    data, cols = _pack(torch.cat([gate, up]), kind, row_map, arena or WeightArena(0))
    return PackedMatrix(data, 2 * half, cols, kind, gated=True)


def _pack(
    source: torch.Tensor, kind: WeightType, row_map: torch.Tensor, arena: WeightArena
) -> tuple[torch.Tensor, int]:
    native.require()
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    if kind == "f32":
        cols, dtype = source.shape[1], torch.float32
    else:
        cols, dtype = source.shape[1] // _SOURCE_BYTES[kind] * BLOCK, torch.uint8
        if source_row_bytes(kind, cols) != source.shape[1]:
            raise ValueError(f"source: {source.shape[1]} bytes per row are not whole {kind} blocks")
    address = native.address("source", source, dtype, (None, None))
    tiles = row_map.numel() // TILE
    data = arena.take(_native.packed_bytes(_TYPES[kind], tiles, cols))
    _native.pack(data.data_ptr(), _TYPES[kind], address, row_map.data_ptr(), tiles, cols)
    return data, cols


def unpack(matrix: PackedMatrix) -> torch.Tensor:
    """The exact float32 weights [rows, cols] of a packed matrix; gate rows before up rows."""
    if matrix.kind == "f32":
        tiles = matrix.data.view(torch.float32).reshape(-1, matrix.cols, TILE).transpose(1, 2)
    else:
        tiles = _unpack_blocks(matrix)
    rows = tiles.reshape(-1, matrix.cols)
    if matrix.gated:
        halves = rows.reshape(-1, 2, TILE // 2, matrix.cols).transpose(0, 1)
        return halves.reshape(2, -1, matrix.cols)[:, : matrix.rows // 2].reshape(-1, matrix.cols)
    return rows[: matrix.rows]


def _unpack_blocks(matrix: PackedMatrix) -> torch.Tensor:
    """[tiles, TILE, cols] of a quantised matrix."""
    bits = 8 if matrix.kind == "q8_0" else 4
    header = (4 if matrix.kind == "q4_1" else 2) * TILE
    blocks = matrix.data.reshape(-1, matrix.cols // BLOCK, header + TILE * BLOCK * bits // 8)
    halves = blocks[:, :, :header].contiguous().view(torch.float16).float()
    scale = halves[:, :, :TILE, None]
    minimum = halves[:, :, TILE:, None] if matrix.kind == "q4_1" else scale * -float(2 ** (bits - 1))
    lanes = blocks[:, :, header:].contiguous().view(torch.int32).reshape(*blocks.shape[:2], -1, TILE)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    quants = (lanes.unsqueeze(-1) >> shifts) & (2**bits - 1)  # [tiles, blocks, groups, TILE, per lane]
    weights: torch.Tensor = quants.transpose(2, 3).flatten(3).float() * scale + minimum
    return weights.transpose(1, 2).flatten(2)


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


def native_matrix(matrix: PackedMatrix) -> tuple[int, int, int, int, int]:
    """The matrix as the extension takes it: type, data, bias (0 for none), rows, cols."""
    bias = 0 if matrix.bias is None else matrix.bias.data_ptr()
    return _TYPES[matrix.kind], matrix.data.data_ptr(), bias, matrix.rows, matrix.cols


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
    result = _normed(x, norm, pool) @ unpack(matrix).to(x.dtype).T
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
    gate, up = (_normed(x, norm, pool) @ unpack(matrix).to(x.dtype).T).chunk(2, dim=-1)
    out.copy_(silu(gate) * up)


def _normed(x: torch.Tensor, norm: RmsNorm | None, pool: ThreadPool | None) -> torch.Tensor:
    if norm is None:
        return x
    y = torch.empty_like(x)
    rms_norm_reference(x, norm, y, pool)
    return y
