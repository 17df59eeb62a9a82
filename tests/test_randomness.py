"""Addressed randomness: equals its slow twin, is uniform, and addresses do not touch each other."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.randomness import (
    Purpose,
    Stream,
    gumbel,
    gumbel_reference,
    uniform,
    uniform_reference,
)

streams = st.builds(lambda seed, row: Stream.at(seed, row, Purpose.TOKEN), st.integers(0, 2**63), st.text())


@settings(max_examples=50, deadline=None)
@given(streams, st.integers(0, 10**6), st.lists(st.integers(0, 200_000), min_size=1, max_size=40))
def test_draws_equal_the_slow_twin(stream: Stream, position: int, tokens: list[int]) -> None:
    ids = torch.tensor(tokens)
    assert torch.equal(uniform(stream, position, ids), uniform_reference(stream, position, ids))
    assert torch.allclose(gumbel(stream, position, ids), gumbel_reference(stream, position, ids), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(streams, st.integers(0, 10**6), st.integers(1, 300))
def test_a_draw_does_not_depend_on_its_neighbours(stream: Stream, position: int, n: int) -> None:
    ids = torch.arange(n)
    whole = gumbel(stream, position, ids)
    assert all(torch.equal(gumbel(stream, position, ids[i : i + 1])[0], whole[i]) for i in range(0, n, 7))


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_are_uniform_over_tokens_positions_rows_and_seeds() -> None:
    cells = 64
    limit = cells - 1 + 5 * math.sqrt(2 * (cells - 1))  # five sigma of chi-square
    ids = torch.arange(1000)
    by_position = torch.cat([uniform(Stream.at(0, "r", Purpose.TOKEN), p, ids) for p in range(50)])
    by_row = torch.cat([uniform(Stream.at(0, str(r), Purpose.TOKEN), 3, ids) for r in range(50)])
    by_seed = torch.cat([uniform(Stream.at(s, "r", Purpose.TOKEN), 3, ids) for s in range(50)])
    one_token = torch.cat([uniform(Stream.at(0, str(r), Purpose.TOKEN), 3, ids[:1]) for r in range(5000)])
    for draws in (by_position, by_row, by_seed, one_token):
        assert chi_square(torch.histc(draws.float(), cells, 0, 1)) < limit


def test_gumbel_argmax_samples_the_distribution() -> None:
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    ids = torch.tensor([3, 17, 400, 49_000])
    rows = 4000
    picks = [
        int((weights.log() + gumbel(Stream.at(1, str(r), Purpose.TOKEN), 9, ids)).argmax())
        for r in range(rows)
    ]
    counts = torch.bincount(torch.tensor(picks), minlength=4)
    statistic = float(((counts - rows * weights) ** 2 / (rows * weights)).sum())
    assert statistic < 16.3  # p = 0.001 at three degrees of freedom
    biased = torch.tensor([0.46, 0.34, 0.15, 0.05], dtype=torch.float64)
    assert float(((counts - rows * biased) ** 2 / (rows * biased)).sum()) > 16.3


def test_neighbouring_positions_are_independent() -> None:
    stream = Stream.at(5, "row", Purpose.TOKEN)
    first, second = (uniform(stream, p, torch.arange(20_000)) for p in (10, 11))
    correlation = torch.corrcoef(torch.stack((first, second)))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(20_000)
