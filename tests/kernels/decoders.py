"""Small decoders, and passes through them."""

from __future__ import annotations

import math

import torch
from specbatch_kernels.cpu import (
    Activations,
    AttentionKeys,
    DecoderBatch,
    DecoderLayer,
    DecoderOutputs,
    DecoderParts,
    KvCache,
    PackedDecoder,
    PackedMatrix,
    Placement,
    ThreadPool,
    decoder_pass,
    pack,
    pack_gated,
)
from specbatch_kernels.cpu.packing import WeightType, source_row_bytes

NAN = float("nan")
HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCABULARY, LAYERS = 64, 160, 6, 2, 16, 50, 3
PAGE, PAGES = 4, 40


def source(kind: WeightType, rows: int, cols: int) -> torch.Tensor:
    """Weights of about unit gain, as a file stores them."""
    if kind == "f32":
        return torch.randn(rows, cols) / math.sqrt(cols)
    raw: torch.Tensor = torch.randint(
        0, 256, (rows, cols // 32, source_row_bytes(kind, 32)), dtype=torch.uint8
    )
    scale = torch.rand(rows, cols // 32, 1) / math.sqrt(cols) * (0.03 if kind == "q8_0" else 0.4)
    header = torch.cat([scale, -7.5 * scale], dim=2) if kind == "q4_1" else scale
    raw[:, :, : 2 * header.shape[2]] = header.half().view(torch.uint8)
    return raw.reshape(rows, -1)


def make_decoder(kind: WeightType, activations: Activations = "float32", *, qwen: bool) -> PackedDecoder:
    """Biases as Qwen2 has them and head norms as Qwen3 has them, or neither, as Llama."""
    torch.manual_seed(7)

    def matrix(rows: int, cols: int, bias: bool = False) -> PackedMatrix:
        return pack(source(kind, rows, cols), kind, torch.randn(rows) if bias else None, activations)

    layers = [
        DecoderLayer(
            input_norm=torch.rand(HIDDEN) + 0.5,
            qkv=matrix((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, bias=qwen),
            q_norm=torch.rand(DIM) + 0.5 if qwen else None,
            k_norm=torch.rand(DIM) + 0.5 if qwen else None,
            output=matrix(HIDDEN, HEADS * DIM),
            mlp_norm=torch.rand(HIDDEN) + 0.5,
            gate_up=pack_gated(source(kind, INNER, HIDDEN), source(kind, INNER, HIDDEN), kind, activations),
            down=matrix(HIDDEN, INNER),
        )
        for _ in range(LAYERS)
    ]
    embedding = matrix(VOCABULARY, HIDDEN)
    angles = torch.arange(64.0).unsqueeze(1) / 100.0 ** (torch.arange(DIM // 2) / (DIM // 2))
    rotary = torch.stack([angles.cos(), angles.sin()], dim=1).contiguous()
    parts = DecoderParts(
        embedding=embedding,
        head=matrix(VOCABULARY, HIDDEN) if qwen else embedding,
        final_norm=torch.rand(HIDDEN) + 0.5,
        rotary=rotary,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        eps=1e-5,
        captured=(2, LAYERS, 0),
    )
    return PackedDecoder(layers, parts)


def make_cache() -> KvCache:
    shape = (LAYERS, PAGE * PAGES, KV_HEADS, DIM)
    return KvCache(torch.full(shape, NAN), torch.full(shape, NAN), PAGE)


def make_batch(rows: list[tuple[int, int, int]]) -> DecoderBatch:
    """Plain tokens: (row, first position, count) of each part of the pass; row r owns pages 10r onwards."""
    table = torch.arange(PAGES, dtype=torch.int32).reshape(4, 10)
    spots = [(row, position) for row, first, count in rows for position in range(first, first + count)]
    row, position = torch.tensor(spots).T
    slots = table[row, position // PAGE].long() * PAGE + position % PAGE
    none = torch.zeros(len(spots) + 1, dtype=torch.int32)
    keys = AttentionKeys(table, row.int(), position.int() + 1, none, none[:0])
    tokens = (7 * row + 3 * position + position**2) % VOCABULARY
    return DecoderBatch(tokens, Placement(position.contiguous(), slots), keys, torch.arange(len(spots)))


def run(decoder: PackedDecoder, batch: DecoderBatch, cache: KvCache, pool: ThreadPool) -> DecoderOutputs:
    outputs = DecoderOutputs(
        torch.full((len(batch.wanted), VOCABULARY), NAN), torch.full((3, len(batch.tokens), HIDDEN), NAN)
    )
    decoder_pass(decoder, batch, cache, outputs, pool)
    return outputs


def close(found: torch.Tensor | None, wanted: torch.Tensor | None, limit: float = 1e-5) -> bool:
    assert found is not None
    assert wanted is not None
    return bool((found.double() - wanted).abs().max() <= limit * wanted.abs().max())
