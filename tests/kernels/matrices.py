"""Small matrices of every type, and products with them."""

from __future__ import annotations

import torch
from specbatch_kernels.cpu import Activations, PackedMatrix, ThreadPool, WeightType, gated_linear, linear
from specbatch_kernels.cpu.packing import source_row_bytes

KINDS: list[WeightType] = ["f32", "q4_0", "q4_1", "q8_0"]
FORMATS: list[tuple[WeightType, Activations]] = [
    *((kind, "float32") for kind in KINDS),
    *((kind, "int8") for kind in KINDS if kind != "f32"),
]
"""How weights are stored, and what they are multiplied with."""
ROUNDED_ELSEWHERE = 0.01
"""What a pass with inputs of eight bits may differ by from its twin: the last bits of a norm decide where an
input between two steps goes. Single layers are compared without such leeway."""
NAN = float("nan")


def random_source(kind: WeightType, rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    """Weights as a file stores them: any quants, scales of either sign and of many sizes."""
    g = torch.Generator().manual_seed(seed)
    if kind == "f32":
        return torch.randn(rows, cols, generator=g)
    blocks = cols // 32
    raw = torch.randint(0, 256, (rows, blocks, source_row_bytes(kind, 32)), dtype=torch.uint8, generator=g)
    scales = torch.randn(rows, blocks, 2, generator=g) * 2.0 ** -torch.randint(
        2, 22, (rows, blocks, 2), generator=g
    )
    fields = 4 if kind == "q4_1" else 2
    raw[:, :, :fields] = scales.half().view(torch.uint8)[:, :, :fields]
    return raw.reshape(rows, -1)


def run(x: torch.Tensor, matrix: PackedMatrix, pool: ThreadPool) -> torch.Tensor:
    if matrix.gated:
        out = torch.full((len(x), matrix.rows // 2), NAN)
        gated_linear(x, matrix, out, pool)
    else:
        out = torch.full((len(x), matrix.rows), NAN)
        linear(x, matrix, out, pool)
    return out
