"""Small draft heads, and passes through them."""

from __future__ import annotations

import math
from functools import cache

import torch
from specbatch_kernels.cpu import (
    Activations,
    AttentionKeys,
    DraftBatch,
    DraftOutputs,
    HeadMatrices,
    HeadParts,
    KvCache,
    PackedHead,
    PackedMatrix,
    Placement,
    ThreadPool,
    draft_pass,
    pack,
    pack_gated,
)
from specbatch_kernels.cpu.packing import WeightType, source_row_bytes

NAN = float("nan")
HIDDEN, INNER, HEADS, KV_HEADS, DIM, FEATURES = 64, 160, 6, 2, 16, 3
TARGET_VOCABULARY, VOCABULARY = 9000, 4500  # three chunks, the last one of an odd size
PAGE, PAGES, WIDTH = 4, 40, 5


def source(kind: WeightType, rows: int, cols: int) -> torch.Tensor:
    """Weights of about unit gain, as a file stores them."""
    if kind == "f32":
        return torch.randn(rows, cols) / math.sqrt(cols)
    raw: torch.Tensor = torch.randint(
        0, 256, (rows, cols // 32, source_row_bytes(kind, 32)), dtype=torch.uint8
    )
    scale = torch.rand(rows, cols // 32, 1) / math.sqrt(cols) * (0.03 if kind == "q8_0" else 0.4)
    raw[:, :, :2] = scale.half().view(torch.uint8)
    return raw.reshape(rows, -1)


@cache
def make_head(kind: WeightType, form: str, activations: Activations = "float32") -> PackedHead:
    """``form``: ``eagle3``, ``eagle3.1``, or ``joint`` with the other published options."""
    torch.manual_seed(3)

    def matrix(rows: int, cols: int) -> PackedMatrix:
        return pack(source(kind, rows, cols), kind, activations=activations)

    def norm(*shape: int) -> torch.Tensor:
        return torch.rand(*shape) + 0.5

    matrices = HeadMatrices(
        embedding=matrix(TARGET_VOCABULARY, HIDDEN),
        fc=matrix(HIDDEN, FEATURES * HIDDEN),
        qkv=matrix((HEADS + 2 * KV_HEADS) * DIM, 2 * HIDDEN),
        output=matrix(HIDDEN, HEADS * DIM),
        gate_up=pack_gated(source(kind, INNER, HIDDEN), source(kind, INNER, HIDDEN), kind, activations),
        down=matrix(HIDDEN, INNER),
        lm_head=matrix(VOCABULARY, HIDDEN),
    )
    angles = torch.arange(64.0).unsqueeze(1) / 100.0 ** (torch.arange(DIM // 2) / (DIM // 2))
    parts = HeadParts(
        feature_norms=norm(FEATURES, HIDDEN) if form == "eagle3.1" else None,
        joint_norm=norm(FEATURES * HIDDEN) if form == "joint" else None,
        embed_norm=norm(HIDDEN),
        hidden_norm=norm(HIDDEN),
        mlp_norm=norm(HIDDEN),
        final_norm=norm(HIDDEN),
        rotary=torch.stack([angles.cos(), angles.sin()], dim=1).contiguous(),
        target_ids=torch.randperm(TARGET_VOCABULARY)[:VOCABULARY].sort().values,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        eps=1e-5,
        norm_output=form == "eagle3.1",
        norm_residual=form == "joint",
    )
    return PackedHead(matrices, parts)


Form = tuple[WeightType, str, Activations]
FORMS: list[Form] = [
    ("f32", "eagle3", "float32"),
    ("q8_0", "eagle3.1", "float32"),
    ("q4_0", "joint", "float32"),
    ("q8_0", "eagle3.1", "int8"),
    ("q4_0", "joint", "int8"),
]


def make_cache(dtype: torch.dtype = torch.float32) -> KvCache:
    shape = (PAGE * PAGES, KV_HEADS, DIM)
    return KvCache(torch.full(shape, NAN, dtype=dtype), torch.full(shape, NAN, dtype=dtype), PAGE)


def make_batch(rows: list[tuple[int, int, int]], *, deeper: bool = False) -> DraftBatch:
    """Plain entries: (row, first position, count) of each part; row r owns pages 10r onwards."""
    table = torch.arange(PAGES, dtype=torch.int32).reshape(4, 10)
    spots = [(row, position) for row, first, count in rows for position in range(first, first + count)]
    row, position = torch.tensor(spots).reshape(-1, 2).T
    slots = table[row, position // PAGE].long() * PAGE + position % PAGE
    none = torch.zeros(len(spots) + 1, dtype=torch.int32)
    index = 97 * row + position
    given = torch.sin(0.37 * index[:, None] + torch.arange(FEATURES * HIDDEN)).reshape(-1, FEATURES, HIDDEN)
    return DraftBatch(
        tokens=(7 * row + 3 * position + position**2) % TARGET_VOCABULARY,
        placement=Placement(position.contiguous(), slots),
        keys=AttentionKeys(table, row.int(), position.int() + 1, none, none[:0]),
        wanted=torch.arange(len(spots)),
        features=None if deeper else given.contiguous(),
        states=given[:, 0].flip(0).contiguous() if deeper else None,
        state_index=torch.arange(len(spots)).flip(0).contiguous() if deeper else None,
    )


def make_outputs(count: int, temperature: float, dtype: torch.dtype = torch.float32) -> DraftOutputs:
    """Poisoned outputs; every entry has noise of its own."""
    return DraftOutputs(
        temperature=torch.full((count,), temperature, dtype=torch.float64),
        noise=torch.arange(1, count + 1) * 0x1234567890ABCDE,
        states=torch.full((count, HIDDEN), NAN, dtype=dtype),
        ids=torch.full((count, WIDTH), -7),
        log_probs=torch.full((count, WIDTH), NAN, dtype=torch.float64),
        scores=torch.full((count, WIDTH), NAN, dtype=torch.float64),
        logits=torch.full((count, VOCABULARY), NAN, dtype=dtype),
    )


def run(head: PackedHead, batch: DraftBatch, cache: KvCache, pool: ThreadPool, heat: float) -> DraftOutputs:
    outputs = make_outputs(len(batch.wanted), heat)
    draft_pass(head, batch, cache, outputs, pool)
    return outputs


def close(found: torch.Tensor | None, wanted: torch.Tensor | None, limit: float = 2e-5) -> bool:
    assert found is not None
    assert wanted is not None
    return bool((found.double() - wanted).abs().max() <= limit * wanted.abs().max())


def same(a: DraftOutputs, b: DraftOutputs, of_a: slice = slice(None)) -> bool:
    """Bit equality of everything that was computed."""
    assert a.logits is not None
    assert b.logits is not None
    pairs = ((a.states, b.states), (a.ids, b.ids), (a.log_probs, b.log_probs), (a.scores, b.scores))
    return all(torch.equal(x[of_a], y) for x, y in (*pairs, (a.logits, b.logits)))
