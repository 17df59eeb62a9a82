"""The small parts of a decoder and whole passes: accuracy against float64, independence of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import (  # noqa: E402
    KvCache,
    Placement,
    RmsNorm,
    Rotary,
    ThreadPool,
    argmax,
    argmax_reference,
    gated_linear,
    gated_linear_reference,
    linear,
    linear_reference,
    lookup,
    lookup_reference,
    pack,
    pack_gated,
    rms_norm,
    rms_norm_reference,
    rotate_and_store,
    rotate_and_store_reference,
)
from specbatch_kernels.cpu.packing import WeightType, source_row_bytes  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.isas import ISAS  # noqa: E402

NAN = float("nan")


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ISAS), st.integers(1, 20), st.sampled_from([1, 7, 8, 64, 100, 576]), st.integers(1, 3))
def test_rms_norm(isa: Isa, tokens: int, width: int, workers: int) -> None:
    g = torch.Generator().manual_seed(tokens)
    x, norm = torch.randn(tokens, width, generator=g) * 3, RmsNorm(torch.randn(width, generator=g), 1e-5)
    out, wanted = torch.full_like(x, NAN), torch.empty(tokens, width, dtype=torch.float64)
    with ThreadPool(workers, isa=isa) as pool:
        rms_norm(x, norm, out, pool)
        rms_norm_reference(x.double(), norm, wanted, None)
        assert close(out, wanted)
        rms_norm(x, norm, x, pool)
    assert torch.equal(x, out)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 2, 5, 30])
def test_norm_inside_a_linear_layer_equals_norm_before_it(isa: Isa, tokens: int) -> None:
    g = torch.Generator().manual_seed(tokens)
    x, norm = torch.randn(tokens, 72, generator=g), RmsNorm(torch.randn(72, generator=g), 1e-6)
    plain, gated = (
        pack(torch.randn(40, 72), "f32"),
        pack_gated(torch.randn(24, 72), torch.randn(24, 72), "f32"),
    )
    with ThreadPool(2, isa=isa) as pool:
        normed = torch.empty_like(x)
        rms_norm(x, norm, normed, pool)
        inside, before = torch.full((tokens, 40), NAN), torch.empty(tokens, 40)
        linear(x, plain, inside, pool, norm=norm)
        linear(normed, plain, before, pool)
        assert torch.equal(inside, before)
        inside, before = torch.full((tokens, 24), NAN), torch.empty(tokens, 24)
        gated_linear(x, gated, inside, pool, norm=norm)
        gated_linear(normed, gated, before, pool)
        assert torch.equal(inside, before)
    wanted = torch.empty(tokens, 24, dtype=torch.float64)
    gated_linear_reference(x.double(), gated, wanted, None, norm=norm)
    assert close(inside, wanted)
    wanted = torch.empty(tokens, 40, dtype=torch.float64)
    linear_reference(x.double(), plain, wanted, None, norm=norm)
    linear(x, plain, out := torch.empty(tokens, 40), ThreadPool(1, isa=isa), norm=norm)
    assert close(out, wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_silu_is_accurate_from_end_to_end(isa: Isa) -> None:
    """One input times one weight, so that gate and up are the input itself: y = silu(x) * x."""
    x = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([-1e30, 1e15, 0.0, -0.0, 1e-30])]).unsqueeze(
        1
    )
    out = torch.full_like(x, NAN)
    with ThreadPool(1, isa=isa) as pool:
        gated_linear(x, pack_gated(torch.ones(1, 1), torch.ones(1, 1), "f32"), out, pool)
    wanted = torch.nn.functional.silu(x.double()) * x.double()
    error = (out.double() - wanted).abs()
    assert (error <= 1e-6 * wanted.abs() + 1e-30).all()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(ISAS),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([2, 8, 20, 64, 80, 128]),
    st.sampled_from([(1, 1), (6, 2), (9, 3)]),
    st.booleans(),
)
def test_rotary_and_store(isa: Isa, tokens: int, dim: int, heads: tuple[int, int], normed: bool) -> None:
    g = torch.Generator().manual_seed(dim)
    count, kv_heads = heads
    x = torch.randn(tokens, count + 2 * kv_heads, dim, generator=g)
    angles = torch.rand(50, dim // 2, generator=g) * 100
    norms = [RmsNorm(torch.randn(dim, generator=g), 1e-6) for _ in range(2)] if normed else [None, None]
    rotary = Rotary(torch.stack([angles.cos(), angles.sin()], dim=1), *norms)
    place = Placement(torch.randint(0, 50, (tokens,), generator=g), torch.randperm(32, generator=g)[:tokens])
    found = KvCache(torch.full((32, kv_heads, dim), NAN), torch.full((32, kv_heads, dim), NAN), 16)
    wanted = KvCache(found.k.double(), found.v.double(), 16)
    exact = x.double()
    rotate_and_store_reference(exact, rotary, place, wanted, None)
    with ThreadPool(2, isa=isa) as pool:
        rotate_and_store(x, rotary, place, found, pool)
    assert close(x[:, :count], exact[:, :count])
    assert close(found.k[place.slots], wanted.k[place.slots])
    assert torch.equal(found.v[place.slots].double(), wanted.v[place.slots])
    untouched = torch.ones(32, dtype=torch.bool).index_fill(0, place.slots, False)
    assert found.k[untouched].isnan().all()
    assert found.v[untouched].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "q4_0", "q4_1", "q8_0"])
def test_lookup_returns_exact_rows(isa: Isa, kind: WeightType) -> None:
    source = torch.randint(0, 60, (37, source_row_bytes(kind, 64)), dtype=torch.uint8)
    matrix = pack(torch.randn(37, 64) if kind == "f32" else source, kind)
    index = torch.tensor([36, 0, 15, 16, 7, 8, 36])
    out, wanted = torch.full((7, 64), NAN), torch.empty(7, 64)
    with ThreadPool(2, isa=isa) as pool:
        lookup(index, matrix, out, pool)
        lookup_reference(index, matrix, wanted, None)
        assert torch.equal(out, wanted)
        with pytest.raises(ValueError, match="no row 37"):
            lookup(torch.tensor([37]), matrix, out[:1], pool)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(ISAS),
    st.lists(st.sampled_from([-1.0, 0.0, 2.0, -float("inf"), NAN]), min_size=1, max_size=30),
)
def test_argmax_takes_the_lowest_of_equals_and_flags_nan(isa: Isa, values: list[float]) -> None:
    x = torch.tensor([values, [2.0] * len(values)])
    out, wanted = torch.full((2,), -7), torch.empty(2, dtype=torch.int64)
    with ThreadPool(2, isa=isa) as pool:
        argmax(x, out, pool)
    argmax_reference(x, wanted, None)
    by_hand = -1 if any(map(math.isnan, values)) else values.index(max(values))
    assert out.tolist() == wanted.tolist() == [by_hand, 0]


def test_bad_indices_are_refused() -> None:
    heads, cache = torch.zeros(1, 3, 8), KvCache(torch.zeros(4, 1, 8), torch.zeros(4, 1, 8), 4)
    rotary = Rotary(torch.zeros(5, 2, 4))
    with ThreadPool(1) as pool:
        with pytest.raises(ValueError, match="positions"):
            rotate_and_store(heads, rotary, Placement(torch.tensor([5]), torch.tensor([0])), cache, pool)
        with pytest.raises(ValueError, match="slots"):
            rotate_and_store(heads, rotary, Placement(torch.tensor([0]), torch.tensor([-1])), cache, pool)
        with pytest.raises(ValueError, match="cannot hold"):
            rotate_and_store(
                heads[:, :2], rotary, Placement(torch.tensor([0]), torch.tensor([0])), cache, pool
            )
        with pytest.raises(ValueError, match="largest"):
            argmax(torch.zeros(1, 0), torch.zeros(1, dtype=torch.int64), pool)
