"""GGML block formats → float32, bit for bit what llama.cpp's own Python package computes.

Block layouts: ggml ``ggml-common.h``; a block holds values of one row. numpy on one thread: on
shared cores thousands of small parallel regions cost more waiting than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from specbatch.errors import ModelError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_BLOCKS = 8192  # 1 MiB of float32: the passes over a chunk stay in the cache


@dataclass(frozen=True, slots=True)
class BlockType:
    """One GGML storage type.

    Attributes:
        code: Number of the type in the file.
        name: Lower-case name, such as ``q4_1``.
        values: Values per block.
        num_bytes: Bytes per block.
    """

    code: int
    name: str
    values: int
    num_bytes: int

    @property
    def is_float(self) -> bool:
        """Whether values are stored one by one as floating point."""
        return self.values == 1


def block_type(code: int) -> BlockType:
    """The storage type behind a number in the file.

    Raises:
        ModelError: No such type is known.
    """
    known = _FAST.get(code)
    if known is not None:
        return known[0]
    # Imported for rare types alone: it costs a third of a second.
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415

    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        raise ModelError(f"GGUF tensor type {code} is unknown", "a newer gguf package may know it") from error
    values, num_bytes = GGML_QUANT_SIZES[kind]
    return BlockType(code, kind.name.lower(), values, num_bytes)


def dequantize(raw: Bytes, kind: BlockType) -> Floats:
    """Dequantise rows of blocks.

    Args:
        raw: uint8 ``[rows, bytes per row]``, contiguous.
        kind: Storage type; formats without a fast path use ``dequantize_reference``.

    Returns:
        float32 ``[rows, values per row]`` that shares no memory with ``raw``.

    Raises:
        ModelError: The format cannot be dequantised.
    """
    fast = _FAST.get(kind.code)
    return dequantize_reference(raw, kind) if fast is None else fast[1](raw)


def dequantize_reference(raw: Bytes, kind: BlockType) -> Floats:
    """The same through the ``gguf`` package: slow, and right by definition."""
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize as gguf_dequantize  # noqa: PLC0415

    try:
        values = gguf_dequantize(raw, GGMLQuantizationType(kind.code))
    except NotImplementedError as error:
        raise ModelError(
            f"GGUF tensor type {kind.name} cannot be dequantised", "use a q4, q5, q6, q8 or f16 file"
        ) from error
    return np.array(values, dtype=np.float32)


def _f32(raw: Bytes) -> Floats:
    return raw.copy().view(np.float32)


def _f16(raw: Bytes) -> Floats:
    return raw.copy().view(np.float16).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    """The upper half of a float32."""
    return (raw.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _half(header: Bytes) -> Floats:
    """float16 header fields ``[blocks, fields]`` as float32."""
    return header.copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes, out: Floats) -> None:
    """Unpack ``[blocks, 16]`` bytes into ``[blocks, 32]``: low halves first, then high halves."""
    halves = out.reshape(-1, 2, 16)
    halves[:, 0] = packed & 15
    halves[:, 1] = packed >> 4


def _q8_0(raw: Bytes) -> Floats:
    """Scale d (float16), then 32 signed bytes: value = q · d."""
    blocks = raw.reshape(-1, 34)
    scale = _half(blocks[:, :2])
    out = np.empty((len(blocks), 32), np.float32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        np.multiply(blocks[chunk, 2:].view(np.int8), scale[chunk], out=out[chunk])
    return out.reshape(len(raw), -1)


def _q4_0(raw: Bytes) -> Floats:
    """Scale d (float16), then 32 nibbles: value = (q - 8) · d."""
    blocks = raw.reshape(-1, 18)
    scale = _half(blocks[:, :2])
    out = np.empty((len(blocks), 32), np.float32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        _nibbles(blocks[chunk, 2:], out[chunk])
        out[chunk] -= 8
        out[chunk] *= scale[chunk]
    return out.reshape(len(raw), -1)


def _q4_1(raw: Bytes) -> Floats:
    """Scale d and minimum m (float16), then 32 nibbles: value = q · d + m."""
    blocks = raw.reshape(-1, 20)
    header = _half(blocks[:, :4])
    out = np.empty((len(blocks), 32), np.float32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        _nibbles(blocks[chunk, 4:], out[chunk])
        # Two roundings, as in the reference; a fused multiply-add would round once.
        out[chunk] *= header[chunk, :1]
        out[chunk] += header[chunk, 1:]
    return out.reshape(len(raw), -1)


_FAST: Mapping[int, tuple[BlockType, Callable[[Bytes], Floats]]] = MappingProxyType(
    {
        kind.code: (kind, convert)
        for kind, convert in (
            (BlockType(0, "f32", 1, 4), _f32),
            (BlockType(1, "f16", 1, 2), _f16),
            (BlockType(2, "q4_0", 32, 18), _q4_0),
            (BlockType(3, "q4_1", 32, 20), _q4_1),
            (BlockType(8, "q8_0", 32, 34), _q8_0),
            (BlockType(30, "bf16", 1, 2), _bf16),
        )
    }
)
