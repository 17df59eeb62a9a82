"""GGML block formats → float32, bit for bit what llama.cpp's own Python package computes.

Block layouts: ggml ``ggml-common.h``; every block holds 32 values of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from specbatch.errors import ModelError


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


_CHUNK_BLOCKS = 16384  # 2 MiB of float32: the passes over a chunk stay in the cache


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


def dequantize(raw: torch.Tensor, kind: BlockType) -> torch.Tensor:
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


def dequantize_reference(raw: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """The same through the ``gguf`` package: slow, and right by definition."""
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize as gguf_dequantize  # noqa: PLC0415

    try:
        values = gguf_dequantize(raw.numpy(), GGMLQuantizationType(kind.code))
    except NotImplementedError as error:
        raise ModelError(
            f"GGUF tensor type {kind.name} cannot be dequantised", "use a q4, q5, q6, q8 or f16 file"
        ) from error
    return torch.from_numpy(values).clone()


def _floats(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def convert(raw: torch.Tensor) -> torch.Tensor:
        # The copy comes first: a tensor in the file need not be aligned to its element size.
        return raw.clone().view(dtype).float()

    return convert


def _q8_0(raw: torch.Tensor) -> torch.Tensor:
    """Scale d (float16), then 32 signed bytes: value = q · d."""
    blocks = raw.view(-1, 34)
    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    out = torch.empty(len(blocks), 32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        out[chunk] = blocks[chunk, 2:].view(torch.int8)
        out[chunk] *= scale[chunk]
    return out.view(len(raw), -1)


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """Unpack uint8 ``[blocks, 16]`` into ``[blocks, 32]``: low halves first, then high halves."""
    halves = out.view(-1, 2, 16)
    halves[:, 0] = packed & 15
    halves[:, 1] = packed >> 4


def _q4_0(raw: torch.Tensor) -> torch.Tensor:
    """Scale d (float16), then 32 nibbles: value = (q - 8) · d."""
    blocks = raw.view(-1, 18)
    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    out = torch.empty(len(blocks), 32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        _nibbles(blocks[chunk, 2:], out[chunk])
        out[chunk] -= 8
        out[chunk] *= scale[chunk]
    return out.view(len(raw), -1)


def _q4_1(raw: torch.Tensor) -> torch.Tensor:
    """Scale d and minimum m (float16), then 32 nibbles: value = q · d + m."""
    blocks = raw.view(-1, 20)
    header = blocks[:, :4].contiguous().view(torch.float16).float()
    out = torch.empty(len(blocks), 32)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        _nibbles(blocks[chunk, 4:], out[chunk])
        # Two roundings, as in the reference; a fused multiply-add would round once.
        out[chunk] *= header[chunk, :1]
        out[chunk] += header[chunk, 1:]
    return out.view(len(raw), -1)


_FAST: Mapping[int, tuple[BlockType, Callable[[torch.Tensor], torch.Tensor]]] = MappingProxyType(
    {
        kind.code: (kind, convert)
        for kind, convert in (
            (BlockType(0, "f32", 1, 4), _floats(torch.float32)),
            (BlockType(1, "f16", 1, 2), _floats(torch.float16)),
            (BlockType(2, "q4_0", 32, 18), _q4_0),
            (BlockType(3, "q4_1", 32, 20), _q4_1),
            (BlockType(8, "q8_0", 32, 34), _q8_0),
            (BlockType(30, "bf16", 1, 2), _floats(torch.bfloat16)),
        )
    }
)
