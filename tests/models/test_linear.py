"""The linear layer: right, and each row independent of the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.models.linear import (
    LinearFactory,
    PackedLinear,
    PlainLinear,
    RowByRowLinear,
    choose_linear,
    packed_linear_is_invariant,
)

SHAPE = (96, 72)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([PackedLinear, RowByRowLinear]),
    st.integers(1, 70),
    st.booleans(),
    st.integers(0, 1000),
    st.data(),
)
def test_rows_are_right_and_independent_of_the_batch(
    factory: LinearFactory, rows: int, biased: bool, seed: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SHAPE, generator=generator)
    bias = torch.randn(SHAPE[0], generator=generator) if biased else None
    x = torch.randn((rows, SHAPE[1]), generator=generator)
    layer = factory(weight, bias)
    whole = layer(x)
    assert torch.allclose(whole, PlainLinear(weight, bias)(x), rtol=1e-4, atol=1e-4)
    first = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(first + 1, rows))
    assert torch.equal(layer(x[first:end]), whole[first:end])


def test_the_probe_rejects_a_layer_that_depends_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbatch.models.linear.PackedLinear", PlainLinear)
    assert not packed_linear_is_invariant((960, 576))


def test_the_cpu_gets_an_exact_layer() -> None:
    assert choose_linear(torch.device("cpu"), {SHAPE}) in (PackedLinear, RowByRowLinear)
