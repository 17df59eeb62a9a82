"""Sampling: the token of the twin, for every combination of filters, in any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import SamplingRow, ThreadPool, sample, sample_reference  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.isas import ISAS  # noqa: E402

NAN, INF = float("nan"), float("inf")


def make_rows(params: list[dict[str, float]], width: int, seed: int = 0) -> list[SamplingRow]:
    """Rows with given parameters, others off, and random streams and histories."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for place, own in enumerate(params):
        state = int(torch.randint(-(2**62), 2**62, (), generator=g)) % 2**64
        history = torch.randperm(width, generator=g)[: int(own.get("history", 0))].tolist()
        rows.append(
            SamplingRow(
                place,
                temperature=own.get("temperature", 1.0),
                penalty=own.get("penalty", 1.0),
                top_p=own.get("top_p", 1.0),
                min_p=own.get("min_p", 0.0),
                top_k=int(own.get("top_k", 0)),
                state=state,
                history=tuple(history),
            )
        )
    return rows


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 1e-310, 0.01, 0.3, 1.0, 5.0]),
        "penalty": st.sampled_from([0.5, 1.3, 1e308]),
        "history": st.integers(0, 40),
        "top_p": st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 0.9999999]),
        "min_p": st.sampled_from([1e-4, 0.05, 0.9, 1.0]),
        "top_k": st.sampled_from([1, 2, 7, 40, 1000, 10**9]),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(ISAS),
    st.lists(PARAMS, min_size=1, max_size=6),
    st.sampled_from([1, 2, 3, 5, 8, 97, 1000, 4099]),
    st.sampled_from([0.0, 1.0, 4.0, 30.0]),
    st.integers(0, 2**32),
)
def test_chooses_the_token_of_the_twin(
    isa: Isa, params: list[dict[str, float]], width: int, spread: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), width, generator=g) * spread
    rows = make_rows(params, width, seed)
    with ThreadPool(2, isa=isa) as pool:
        assert sample(logits, rows, pool) == sample_reference(logits, rows, None)


@pytest.mark.parametrize("isa", ISAS)
def test_ties_at_the_edge_of_a_filter_are_kept(isa: Isa) -> None:
    """Four equal tokens, top-k 2: all four stay, so many streams choose all of them."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 3.0]]).repeat(200, 1)
    rows = make_rows([{"top_k": 2}] * 200, 6)
    with ThreadPool(1, isa=isa) as pool:
        assert set(sample(logits, rows, pool)) == {1, 2, 4, 5}


def test_frequencies_are_those_of_the_softmax() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    logits = probabilities.log().repeat(20_000, 1)
    with ThreadPool(2) as pool:
        chosen = torch.tensor(sample(logits, make_rows([{}] * 20_000, 5, seed=3), pool))
    counts = torch.bincount(chosen, minlength=5).double()
    expected = probabilities.double() * 20_000
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 99.9 % quantile with 4 degrees of freedom


def test_row_does_not_depend_on_its_batch() -> None:
    params: list[dict[str, float]] = [
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 0.0},
        {"top_k": 5},
        {},
    ]
    params *= 3
    logits, rows = torch.randn(12, 500), make_rows(params, 500)
    with ThreadPool(3) as pool:
        together = sample(logits, rows, pool)
        for i in range(12):
            assert sample(logits[i : i + 1], [rows[i]._replace(place=0)], pool) == [together[i]]
            assert sample(logits, [rows[i]], pool) == [together[i]]


@pytest.mark.parametrize("isa", ISAS)
def test_rows_without_a_finite_maximum_are_flagged(isa: Isa) -> None:
    logits = torch.zeros(5, 12)
    logits[1, 11], logits[2, 3] = NAN, INF
    logits[3] = -INF
    logits[4, 1:] = -INF
    params: list[dict[str, float]] = [{}, {}, {"temperature": 0.0}, {}, {"top_p": 0.5}]
    rows = make_rows(params, 12)
    with ThreadPool(1, isa=isa) as pool:
        chosen = sample(logits, rows, pool)
    assert chosen[1:] == [-1, -1, -1, 0]
    assert chosen == sample_reference(logits, rows, None)


def test_what_does_not_exist_is_refused() -> None:
    (row,) = make_rows([{"penalty": 2.0, "history": 3}], 20)
    with ThreadPool(1) as pool:
        for wrong in (20, -1, 2**63):
            with pytest.raises((ValueError, OverflowError)):
                sample(torch.zeros(1, 20), [row._replace(history=(1, wrong))], pool)
        with pytest.raises(ValueError, match="history"):
            sample(torch.zeros(1, 20), [row, row._replace(history=(20,))], pool)
        for place in (1, -1):
            with pytest.raises(ValueError, match="place"):
                sample(torch.zeros(1, 20), [row._replace(place=place)], pool)
        with pytest.raises(TypeError):
            sample(torch.zeros(1, 20), [row[:7]], pool)  # type: ignore[list-item]  # the point
