"""A tensor as its file stores it: floats, or blocks of quantised values that kernels can use as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specbatch.errors import ModelError
from specbatch.models.gguf_blocks import BlockType, block_type, dequantize

QuantizedKind = Literal["q8_0", "q4_0"]
"""What ``--quantize`` can make of a float checkpoint."""

_CODES: dict[QuantizedKind, int] = {"q4_0": 2, "q8_0": 8}
_EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint.

    Attributes:
        data: The values themselves, or uint8 ``[rows, bytes per row]`` of whole blocks.
        kind: Block format of ``data``; ``None`` when it holds plain values.
    """

    data: Tensor
    kind: BlockType | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in values."""
        if self.kind is None:
            return tuple(self.data.shape)
        rows, row_bytes = self.data.shape
        return rows, row_bytes // self.kind.num_bytes * self.kind.values

    def values(self) -> Tensor:
        """Plain values: float32 where the tensor was quantised, otherwise as stored."""
        if self.kind is None:
            return self.data
        return torch.from_numpy(dequantize(self.data.numpy(), self.kind))


def quantize(name: str, tensor: StoredTensor, kind: QuantizedKind) -> StoredTensor:
    """Quantise one tensor of a float checkpoint.

    Matrices of the layers become ``kind``; the embedding and the output projection, on which quality
    hangs most, become Q8_0; norms and biases stay as they are.

    Args:
        name: Hugging Face name.
        tensor: Plain values.
        kind: Format of the layers' matrices.

    Raises:
        ModelError: Rows are not made of whole blocks.
    """
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 - a third of a second, rarely needed
    from gguf.quants import quantize as gguf_quantize  # noqa: PLC0415

    if tensor.data.dim() != 2:
        return tensor
    block = block_type(_CODES["q8_0" if name in _EMBEDDINGS else kind])
    if tensor.data.shape[1] % block.values:
        raise ModelError(
            f"{name} has {tensor.data.shape[1]} columns, {block.name} needs a multiple of {block.values}",
            "run the model without --quantize",
        )
    values = np.ascontiguousarray(tensor.data.to(torch.float32).numpy())
    raw = gguf_quantize(values, GGMLQuantizationType(block.code))
    return StoredTensor(torch.from_numpy(np.ascontiguousarray(raw)), block)
