"""The GGUF container: metadata, tensor table and tensors under Hugging Face names.

Format: ggml ``docs/gguf.md``, versions 2 and 3. Read here rather than with the ``gguf`` package's
reader, which takes seconds over a vocabulary.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specbatch.errors import ModelError
from specbatch.models.files import out_of_memory
from specbatch.models.gguf_blocks import BlockType, Bytes, block_type, dequantize

Scalar = str | int | float | bool

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, struct.Struct]] = MappingProxyType(
    {
        code: struct.Struct(f"<{letter}")
        for code, letter in {
            0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
        }.items()
    }
)  # fmt: skip

_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_TOP_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_LAYER: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    Attributes:
        name: In the file, such as ``blk.0.attn_q.weight``.
        shape: Outermost dimension first, as in torch.
        kind: How values are stored.
        offset: First byte, from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) // self.kind.values * self.kind.num_bytes

    @property
    def hf_name(self) -> str:
        """Hugging Face name; the name in the file where there is no counterpart."""
        layer = _LAYER.fullmatch(self.name)
        if layer is None or layer[2] not in _NAMES:
            return _TOP_NAMES.get(self.name, self.name)
        return f"model.layers.{layer[1]}.{_NAMES[layer[2]]}.{layer[3]}"


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Header of one GGUF file.

    Attributes:
        path: The file.
        metadata: Key-value pairs; of an array only the length is kept.
        tensors: The tensor table in file order.
    """

    path: Path
    metadata: Mapping[str, Scalar]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """``general.architecture``, such as ``llama``."""
        return str(self.metadata["general.architecture"])

    @property
    def quantization(self) -> str:
        """Storage type of most weights; ``none`` when that is floating point."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            name = "none" if tensor.kind.is_float else tensor.kind.name
            sizes[name] = sizes.get(name, 0) + prod(tensor.shape)
        return max(sizes, key=lambda name: sizes[name], default="none")


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def number(self, code: int) -> int | float | bool:
        layout = _SCALARS[code]
        (value,) = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return value  # type: ignore[no-any-return]

    def integer(self, code: int) -> int:
        return int(self.number(code))

    def string(self) -> str:
        length = self.integer(10)
        start = self.position
        self.position += length
        return self._data[start : self.position].decode("utf-8", errors="replace")

    def skip_strings(self, count: int) -> None:
        position, read = self.position, _SCALARS[10].unpack_from
        for _ in range(count):
            position += 8 + read(self._data, position)[0]
        self.position = position

    def value(self) -> Scalar:
        """One metadata value; of an array its length."""
        code = self.integer(4)
        if code == _STRING:
            return self.string()
        if code != _ARRAY:
            return self.number(code)
        element, count = self.integer(4), self.integer(10)
        if element == _STRING:
            self.skip_strings(count)
        else:
            self.position += count * _SCALARS[element].size
        return count


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file.

    Raises:
        ModelError: The file cannot be read, is not GGUF, or is cut short.
    """
    with _mapped(path) as data:
        if data[:4] != _MAGIC:
            raise ModelError(f"{path} is not a GGUF file", "fetch the file again")
        try:
            gguf = _parse(path, data)
        except (struct.error, KeyError, OverflowError) as error:
            raise ModelError(f"{path}: the GGUF header is damaged", "fetch the file again") from error
        end = max((tensor.offset + tensor.num_bytes for tensor in gguf.tensors), default=0)
        if end > len(data):
            raise ModelError(f"{path} is cut short: {len(data)} of {end} bytes", "fetch the file again")
    if int(gguf.metadata.get("split.count", 1)) > 1:
        raise ModelError(f"{path} is one part of a split GGUF file", "merge the parts with llama-gguf-split")
    return gguf


def read_blocks(gguf: GgufFile, num_heads: int, num_kv_heads: int) -> Iterator[tuple[str, GgufTensor, Bytes]]:
    """Yield Hugging Face name, table entry and raw rows of every tensor, in file order.

    Args:
        gguf: Header of the file.
        num_heads: Query heads.
        num_kv_heads: Key/value heads.

    Returns:
        Rows are uint8 ``[rows, bytes per row]``, query and key rows in halves-first rotary order;
        they may be a view of the file, and writing to that does not change the file.
    """
    data = _mapped(gguf.path, mmap.ACCESS_COPY)  # lives as long as the last view of it
    for tensor in gguf.tensors:
        raw = np.frombuffer(data, np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        rows = raw.reshape(prod(tensor.shape[:-1]), -1)
        if gguf.architecture == "llama":
            rows = _undo_permutation(rows, tensor.name, num_heads, num_kv_heads)
        yield tensor.hf_name, tensor, rows


def read_tensors(
    gguf: GgufFile, num_heads: int, num_kv_heads: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield Hugging Face name and float32 values; arguments as in :func:`read_blocks`."""
    for name, tensor, rows in read_blocks(gguf, num_heads, num_kv_heads):
        yield name, dequantize(rows, tensor.kind).reshape(tensor.shape)


def _undo_permutation(rows: Bytes, name: str, num_heads: int, num_kv_heads: int) -> Bytes:
    """Bring query and key rows back to halves-first rotary order.

    llama.cpp's converter interleaves the two rotary halves of every head for architecture ``llama``
    (``LlamaModel.permute`` in ``convert_hf_to_gguf.py``). Whole rows move, so quantised rows can.
    """
    if name.endswith(".attn_q.weight"):
        heads = num_heads
    elif name.endswith(".attn_k.weight"):
        heads = num_kv_heads
    else:
        return rows
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    cursor.position = len(_MAGIC)
    version = cursor.integer(4)
    if version not in _VERSIONS:
        raise ModelError(f"{path}: GGUF version {version} is not supported, only 2 and 3")
    num_tensors, num_pairs = cursor.integer(10), cursor.integer(10)
    metadata: dict[str, Scalar] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value()
    if "general.architecture" not in metadata:
        raise ModelError(f"{path}: the GGUF file does not name an architecture")
    table = []
    for _ in range(num_tensors):
        name = cursor.string()
        shape = tuple(cursor.integer(10) for _ in range(cursor.integer(4)))
        table.append((name, shape[::-1], block_type(cursor.integer(4)), cursor.integer(10)))
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    start = -(-cursor.position // alignment) * alignment
    tensors = tuple(GgufTensor(name, shape, kind, start + offset) for name, shape, kind, offset in table)
    return GgufFile(path, MappingProxyType(metadata), tensors)


def _mapped(path: Path, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """The file as memory."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelError(f"{path} is empty", "fetch the file again")
            return mmap.mmap(file.fileno(), 0, access=access)
    except (OSError, ValueError) as error:
        if out_of_memory(error):
            raise MemoryError(f"{path}: {error}") from error
        raise ModelError(f"{path} cannot be read: {error}") from error
