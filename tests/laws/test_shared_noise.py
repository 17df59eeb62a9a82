"""What sharing noise is worth: how often a drafter's draw under the target's noise is the target's token."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.randomness import Purpose, Stream, gumbel
from tests.laws.exact import Probabilities, fractions


def agreement(p: Probabilities, q: Probabilities) -> Fraction:
    """Chance that ``argmax(log p + g)`` and ``argmax(log q + g)`` are one token.

    Token i wins both races if its exponential clock beats every other one j by the factor
    max(p_j / p_i, q_j / q_i).
    """
    total = Fraction(0)
    for pi, qi in zip(p, q, strict=True):
        if pi and qi:
            rivals = (max(pj / pi, qj / qi) for pj, qj in zip(p, q, strict=True))
            total += 1 / sum(rivals, start=Fraction(0))
    return total


def total_variation(p: Probabilities, q: Probabilities) -> Fraction:
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), start=Fraction(0)) / 2


weights = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any)


@settings(max_examples=200, deadline=None)
@given(weights, weights)
def test_agreement_is_at_least_the_known_bound(ours: list[int], theirs: list[int]) -> None:
    p, q = fractions(*ours), fractions(*theirs)
    apart = total_variation(p, q)
    assert (1 - apart) / (1 + apart) <= agreement(p, q) <= 1 - apart


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (fractions(5, 3, 1, 1), fractions(2, 5, 2, 1)),
        (fractions(1, 0, 1, 2), fractions(1, 1, 0, 2)),
        (fractions(7, 1, 1, 1), fractions(7, 1, 1, 1)),
    ],
)
def test_addressed_noise_agrees_that_often(p: Probabilities, q: Probabilities) -> None:
    draws = 3000
    stream, tokens = Stream.at(0, "row", Purpose.TOKEN), torch.arange(4)
    noise = torch.stack([gumbel(stream, position, tokens) for position in range(draws)])
    picks = [(torch.tensor([float(x) for x in law]).double().log() + noise).argmax(1) for law in (p, q)]
    expected = float(agreement(p, q))
    found = float((picks[0] == picks[1]).double().mean())
    assert abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / draws)
    independent = float(sum(a * b for a, b in zip(p, q, strict=True)))
    assert found > independent + 0.1, "no better than noise of its own"
