"""AVX-512 and AMX kernels have the bits of the AVX2 ones: runs may go from one machine to the other."""

from __future__ import annotations

import pytest
import torch

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import (  # noqa: E402
    Activations,
    AttentionKeys,
    KvCache,
    PackedMatrix,
    RmsNorm,
    ThreadPool,
    gated_linear,
    linear,
    lookup,
    pack,
    pack_gated,
    paged_attention,
)
from specbatch_kernels.cpu.packing import WeightType  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels import decoders, draft_heads  # noqa: E402
from tests.kernels.isas import ISAS  # noqa: E402
from tests.kernels.matrices import FORMATS, KINDS, NAN, random_source  # noqa: E402

WIDE = [isa for isa in ISAS if isa in ("amx", "avx512")]
if not WIDE:
    pytest.skip("this processor has no AVX-512", allow_module_level=True)

pytestmark = pytest.mark.parametrize("isa", WIDE)

COUNTS = [*range(1, 41), 47, 96, 97, 200, 257]
SHAPES = [(1, 32), (15, 64), (16, 288), (33, 320), (48, 576), (100, 96)]


def bits(x: torch.Tensor) -> torch.Tensor:
    """Zeros of either sign differ, numbers that are none do not."""
    return x.contiguous().view(torch.int32)


@pytest.mark.parametrize(("kind", "inputs"), FORMATS)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_linear_layers_are_equal_to_the_bit(
    isa: Isa, kind: WeightType, inputs: Activations, rows: int, cols: int
) -> None:
    g = torch.Generator().manual_seed(rows)
    bias = torch.randn(rows, generator=g)
    sources = [random_source(kind, rows, cols, seed) for seed in range(4)]
    plain = pack(sources[0], kind, activations=inputs)
    biased = pack(sources[1], kind, bias, inputs)
    gated = pack_gated(sources[2], sources[3], kind, inputs)
    norm = RmsNorm(torch.rand(cols, generator=g) + 0.5, 1e-5)
    with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:

        def check(x: torch.Tensor, matrix: PackedMatrix, norm: RmsNorm | None, accumulate: bool) -> None:
            outs = [torch.linspace(-3, 3, len(x) * rows).reshape(len(x), rows) for _ in range(2)]
            for out, pool in zip(outs, (narrow, wide), strict=True):
                if matrix.gated:
                    gated_linear(x, matrix, out, pool, norm=norm)
                else:
                    linear(x, matrix, out, pool, norm=norm, accumulate=accumulate)
            assert torch.equal(bits(outs[0]), bits(outs[1])), len(x)

        for tokens in COUNTS:
            x = torch.randn(tokens, cols, generator=g)
            check(x, plain, None, False)
            check(x, plain, norm, True)
            check(x, biased, norm, False)
            check(x, gated, None, False)
            check(x, gated, norm, False)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_looked_up_are_equal_to_the_bit(isa: Isa, kind: WeightType) -> None:
    matrix = pack(random_source(kind, 50, 96), kind)
    outs = [torch.full((50, 96), NAN) for _ in range(2)]
    with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:
        for out, pool in zip(outs, (narrow, wide), strict=True):
            lookup(torch.arange(50), matrix, out, pool)
    assert torch.equal(bits(outs[0]), bits(outs[1]))


@pytest.mark.parametrize("dim", [16, 64, 72, 128])
def test_attention_is_equal_to_the_bit(isa: Isa, dim: int) -> None:
    g = torch.Generator().manual_seed(dim)
    q = torch.randn(40, 6, dim, generator=g)
    cache = KvCache(torch.randn(320, 2, dim, generator=g), torch.randn(320, 2, dim, generator=g), page_size=8)
    keys = AttentionKeys(
        page_table=torch.randperm(40, generator=g).int().reshape(1, 40),
        token_row=torch.zeros(40, dtype=torch.int32),
        context_len=torch.arange(1, 41, dtype=torch.int32) * 8,
        extra_offsets=torch.zeros(41, dtype=torch.int32),
        extra_positions=torch.zeros(0, dtype=torch.int32),
    )
    outs = [torch.full_like(q, NAN) for _ in range(2)]
    with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:
        for out, pool in zip(outs, (narrow, wide), strict=True):
            paged_attention(q, cache, keys, dim**-0.5, out, pool)
    assert torch.equal(bits(outs[0]), bits(outs[1]))


def forked_keys(rows: list[tuple[int, int, bool]], g: torch.Generator) -> AttentionKeys:
    """Keys of rows of (context, tokens, whether the tokens are a tree of extra positions)."""
    token_row, context_len, extras, offsets = [], [], list[int](), [0]
    for row, (context, tokens, tree) in enumerate(rows):
        for token in range(tokens):
            token_row.append(row)
            context_len.append(context if tree else context + token)
            extras += range(context + token % 3, context + token + 1, 3) if tree else []
            offsets.append(len(extras))
    return AttentionKeys(
        page_table=torch.randperm(70 * len(rows), generator=g).int().reshape(len(rows), 70),
        token_row=torch.tensor(token_row, dtype=torch.int32),
        context_len=torch.tensor(context_len, dtype=torch.int32),
        extra_offsets=torch.tensor(offsets, dtype=torch.int32),
        extra_positions=torch.tensor(extras, dtype=torch.int32),
    )


ROWS = [
    [(1, 1, False)],
    [(431, 1, False)],
    [(63, 2, False)],
    [(250, 5, False)],
    [(189, 1, True)],
    [(317, 8, True)],
    [(60, 21, True)],
    [(5, 40, True)],
    [(203, 5, False), (130, 7, True), (511, 1, False)],
    [(7 + 41 * row, 1, False) for row in range(12)],
    [(11 + 53 * row, 1 + row % 4, row % 2 == 1) for row in range(9)],
]


@pytest.mark.parametrize("dim", [16, 20, 64, 72, 128])
@pytest.mark.parametrize("group", range(1, 9))
def test_attention_of_rows_and_trees_is_equal_to_the_bit(isa: Isa, group: int, dim: int) -> None:
    g = torch.Generator().manual_seed(100 * group + dim)
    with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:
        for rows in ROWS:
            keys = forked_keys(rows, g)
            slots = 560 * len(rows)
            k, v = (torch.randn(slots, 2, dim, generator=g) for _ in range(2))
            cache = KvCache(k, v, page_size=8)
            q = torch.randn(len(keys.token_row), 2 * group, dim, generator=g)
            outs = [torch.full_like(q, NAN) for _ in range(2)]
            for out, pool in zip(outs, (narrow, wide), strict=True):
                paged_attention(q, cache, keys, dim**-0.5, out, pool)
            assert not outs[0].isnan().any()
            assert torch.equal(bits(outs[0]), bits(outs[1])), rows


@pytest.mark.parametrize(("kind", "inputs"), FORMATS)
@pytest.mark.parametrize("qwen", [False, True])
def test_decoder_passes_are_equal_to_the_bit(
    isa: Isa, kind: WeightType, inputs: Activations, qwen: bool
) -> None:
    decoder = decoders.make_decoder(kind, inputs, qwen=qwen)
    caches = [decoders.make_cache() for _ in range(2)]
    with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:
        for rows in ([(0, 0, 11), (2, 0, 30)], [(0, 11, 1), (2, 30, 4)], [(0, 12, 1)]):
            batch = decoders.make_batch(rows)
            found = [
                decoders.run(decoder, batch, cache, pool)
                for cache, pool in zip(caches, (narrow, wide), strict=True)
            ]
            assert torch.equal(bits(found[0].logits), bits(found[1].logits))
            assert found[0].captured is not None
            assert found[1].captured is not None
            assert torch.equal(bits(found[0].captured), bits(found[1].captured))
    assert torch.equal(bits(caches[0].k), bits(caches[1].k))
    assert torch.equal(bits(caches[0].v), bits(caches[1].v))


@pytest.mark.parametrize("which", draft_heads.FORMS)
@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_draft_passes_are_equal_to_the_bit(
    isa: Isa, which: draft_heads.Form, deeper: bool, heat: float
) -> None:
    head = draft_heads.make_head(*which)
    for rows in ([(0, 0, 1)], [(0, 0, 7), (1, 0, 2), (3, 0, 1)], [(0, 0, 20), (2, 0, 17)]):
        batch = draft_heads.make_batch(rows, deeper=deeper)
        caches = [draft_heads.make_cache() for _ in range(2)]
        with ThreadPool(2, isa="avx2") as narrow, ThreadPool(2, isa=isa) as wide:
            one = draft_heads.run(head, batch, caches[0], narrow, heat)
            two = draft_heads.run(head, batch, caches[1], wide, heat)
        assert draft_heads.same(one, two)
        assert torch.equal(bits(caches[0].k), bits(caches[1].k))
