"""A cap on power holds, and what is below it is made use of."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.schedule.power import Allowance, PowerGovernor


def machine(idle: float, per_pass: float, per_token: float, tokens: float) -> float:
    """Watts of passes over so many tokens, of 10 ms and 2 ms per token; below one there are pauses."""
    if tokens < 1.0:
        return idle + tokens * (per_pass + per_token) / 0.012
    return idle + (per_pass + per_token * tokens) / (0.01 + 0.002 * tokens)


def windows(
    cap: float, power: Callable[[float], float], wanted: Callable[[int], float], count: int
) -> list[float]:
    """Power of so many windows of which each wants to compute so many tokens per pass."""
    governor = PowerGovernor(cap, 600)
    found: list[float] = []
    for number in range(count):
        used = min(governor.allowance.tokens, wanted(number))
        found.append(power(used))
        governor.observe(found[-1], used)
    return found


@settings(deadline=None)
@given(
    st.floats(20.0, 100.0), st.floats(0.1, 2.0), st.floats(0.05, 1.0), st.floats(0.2, 1.1), st.integers(0, 9)
)
def test_the_cap_holds_in_99_of_100_windows_whatever_the_load(
    idle: float, per_pass: float, per_token: float, share: float, seed: int
) -> None:
    least, most = idle, machine(idle, per_pass, per_token, 300.0)
    cap = least + share * (most - least)
    rng = np.random.default_rng(seed)
    load = np.clip(np.repeat(rng.uniform(4, 300, 20), 20), 1, None)
    noise = rng.normal(1.0, 0.01, 400)
    numbers = itertools.count()
    found = windows(
        cap,
        lambda used: machine(idle, per_pass, per_token, used) * float(noise[next(numbers) % 400]),
        lambda number: float(load[number % 400]),
        400,
    )
    assert sum(watts > cap for watts in found) <= 4


@pytest.mark.parametrize("cap", [90.0, 150.0, 250.0])
def test_most_of_the_cap_is_made_use_of(cap: float) -> None:
    found = windows(cap, lambda used: machine(50.0, 1.0, 0.5, used), lambda _: 300.0, 200)
    assert np.mean(found[40:]) > 0.85 * cap


def test_a_steady_load_is_left_alone() -> None:
    governor, changes = PowerGovernor(100.0, 600), 0
    for _ in range(200):
        used = governor.allowance.tokens
        changes += governor.observe(machine(40.0, 0.5, 0.3, used), used) is not None
    assert changes < 25


def test_a_load_that_grows_at_once_is_cut_at_once() -> None:
    governor = PowerGovernor(100.0, 600)
    for _ in range(30):
        governor.observe(60.0, governor.allowance.tokens)
    before = governor.allowance.tokens
    assert governor.observe(140.0, before) == "above the cap"
    assert governor.allowance.tokens < 0.7 * before


def test_speculation_goes_first_then_rows_then_there_are_pauses() -> None:
    plenty, some, few, one, less = (Allowance(tokens) for tokens in (100.0, 12.5, 5.0, 1.0, 0.25))
    assert (plenty.rows(8), plenty.drafted(8)) == (8, 92)
    assert (some.rows(8), some.drafted(8)) == (8, 4)
    assert (few.rows(8), few.drafted(5)) == (5, 0)
    assert Allowance(5.2).rows(8) == 6
    assert (one.rows(8), one.drafted(1), one.prefill(128, 0)) == (1, 0, 1)
    assert (less.rows(8), less.prefill(128, 0)) == (1, 1)
    assert [each.pause_s(0.1, 1) for each in (plenty, one, less)] == pytest.approx([0.0, 0.0, 0.3])
    assert Allowance(5.0).pause_s(0.1, 6) == pytest.approx(0.02)
    assert plenty.prefill(128, 8) == 92
    assert few.prefill(128, 5) == 1
