"""Weight matrices as the kernels read them: GGUF blocks or float32 values, sixteen outputs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.memory import WeightArena

WeightType = Literal["f32", "q4_0", "q4_1", "q8_0"]
Activations = Literal["float32", "int8"]
"""What the inputs of quantised weights are multiplied as; float32 weights always meet float32 inputs."""

TILE: Final = 16
"""Output rows that are packed together."""
BLOCK: Final = 32
"""Inputs that share a scale in the quantised types."""

# Numbers of the native enumeration.
_TYPES: Final[dict[WeightType, int]] = {"f32": 0, "q4_0": 1, "q4_1": 2, "q8_0": 3}
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
        activations: What its inputs are multiplied as.
    """

    data: torch.Tensor
    rows: int
    cols: int
    kind: WeightType
    bias: torch.Tensor | None = None
    gated: bool = False
    activations: Activations = "float32"


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


class Packer:
    """Packs the matrices of a model: together, so that passes are faster, and when it is told to.

    The matrices it gives out hold nothing before :meth:`run` has ended; what they are made of is kept
    until then. That work needs no interpreter, so another thread can do it while this one goes on.

    Args:
        chunk_bytes: Memory taken from the system at a time; used only as far as it is written to.
        activations: What the inputs of quantised matrices are multiplied as.
    """

    def __init__(self, chunk_bytes: int = 64 << 20, activations: Activations = "float32") -> None:
        native.require()
        self._activations = activations
        self._arena = WeightArena(chunk_bytes)
        self._waiting: list[tuple[int, int, int, int, int]] = []
        self._needed: list[object] = []

    def stacked(
        self, sources: Sequence[torch.Tensor], kind: WeightType, bias: torch.Tensor | None = None
    ) -> PackedMatrix:
        """Matrices as one for :func:`linear`, stacked by output.

        Args:
            sources: float32 [rows, cols] for ``"f32"``, else uint8 [rows, bytes per row] as in a GGUF file.
            kind: What they hold.
            bias: float32 [rows of all], added to the result.

        Raises:
            ValueError: Type or shape of an argument do not fit.
        """
        found = torch.cat([_row_addresses(source, kind, sources[0].shape[1]) for source in sources])
        rows = found.numel()
        if bias is not None:
            native.address("bias", bias, torch.float32, (rows,))
        addresses = torch.zeros(-(-rows // TILE) * TILE, dtype=torch.int64)
        addresses[:rows] = found
        data, cols = self._add(sources, kind, addresses)
        return PackedMatrix(data, rows, cols, kind, bias, activations=self._inputs_of(kind))

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: WeightType) -> PackedMatrix:
        """The two matrices of a gated MLP for :func:`gated_linear`; arguments as in :meth:`stacked`.

        Raises:
            ValueError: The matrices have different shapes, or do not fit ``kind``.
        """
        if gate.shape != up.shape:
            raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must have the same shape")
        half = gate.shape[0]
        groups = -(-half // (TILE // 2))
        both = torch.zeros(2, groups * TILE // 2, dtype=torch.int64)
        both[0, :half] = _row_addresses(gate, kind, gate.shape[1])
        both[1, :half] = _row_addresses(up, kind, gate.shape[1])
        addresses = both.reshape(2, groups, TILE // 2).transpose(0, 1).flatten().contiguous()
        data, cols = self._add([gate, up], kind, addresses)
        return PackedMatrix(data, 2 * half, cols, kind, gated=True, activations=self._inputs_of(kind))

    def run(self) -> None:
        """Pack what was given since the last time."""
        from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

        _native.pack(self._waiting)
        self._waiting, self._needed = [], []

    def _inputs_of(self, kind: WeightType) -> Activations:
        return "float32" if kind == "f32" else self._activations

    def _add(
        self, sources: Sequence[torch.Tensor], kind: WeightType, addresses: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Memory of a matrix, and its inputs, from where the source of every packed row lies (0: none)."""
        from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

        cols, tiles = _cols(sources[0], kind), addresses.numel() // TILE
        data = self._arena.take(_native.packed_bytes(_TYPES[kind], tiles, cols))
        self._waiting.append((data.data_ptr(), _TYPES[kind], addresses.data_ptr(), tiles, cols))
        self._needed.append((sources, addresses, data))
        return data, cols


def pack(
    source: torch.Tensor,
    kind: WeightType,
    bias: torch.Tensor | None = None,
    activations: Activations = "float32",
) -> PackedMatrix:
    """One matrix, packed at once; arguments and errors as for :class:`Packer` and :meth:`Packer.stacked`."""
    packer = Packer(0, activations)
    matrix = packer.stacked([source], kind, bias)
    packer.run()
    return matrix


def pack_gated(
    gate: torch.Tensor, up: torch.Tensor, kind: WeightType, activations: Activations = "float32"
) -> PackedMatrix:
    """One gated MLP's matrices, packed at once; arguments and errors as for :class:`Packer`."""
    packer = Packer(0, activations)
    matrix = packer.gated(gate, up, kind)
    packer.run()
    return matrix


def _cols(source: torch.Tensor, kind: WeightType) -> int:
    """Inputs of a matrix whose rows are stored like this."""
    if kind == "f32":
        return source.shape[1]
    cols = source.shape[1] // _SOURCE_BYTES[kind] * BLOCK
    if source_row_bytes(kind, cols) != source.shape[1]:
        raise ValueError(f"source: {source.shape[1]} bytes per row are not whole {kind} blocks")
    return cols


def _row_addresses(source: torch.Tensor, kind: WeightType, width: int) -> torch.Tensor:
    """int64 [rows]: where each row of a source begins.

    Raises:
        ValueError: It is not what ``kind`` says, or its rows have another width.
    """
    dtype = torch.float32 if kind == "f32" else torch.uint8
    first = native.address("source", source, dtype, (None, width))
    row_bytes = source_row_bytes(kind, _cols(source, kind))
    return torch.arange(source.shape[0], dtype=torch.int64) * row_bytes + first


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


def native_matrix(matrix: PackedMatrix) -> tuple[int, int, int, int, int, bool]:
    """The matrix as the extension takes it: type, data, bias (0 for none), rows, cols, inputs rounded."""
    bias = 0 if matrix.bias is None else matrix.bias.data_ptr()
    rounded = matrix.activations == "int8"
    return _TYPES[matrix.kind], matrix.data.data_ptr(), bias, matrix.rows, matrix.cols, rounded
