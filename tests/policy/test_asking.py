"""Free drafts are asked for as long as they gain more than they take."""

from __future__ import annotations

from itertools import pairwise

from specbatch.policy.asking import Asking


def asked(asking: Asking, steps: range, price: float, gain: float, every: int = 1) -> list[int]:
    """Steps that ask, where one in ``every`` of those gains something."""
    found: list[int] = []
    for step in steps:
        if asking.is_due(step, price):
            asking.found(gain if len(found) % every == 0 else 0.0)
            found.append(step)
    return found


def test_every_step_asks_while_the_mean_gain_is_worth_the_price() -> None:
    assert asked(Asking(), range(1, 201), price=0.04, gain=0.5, every=6) == list(range(1, 201))


def test_what_never_pays_is_asked_for_ever_more_seldom_and_never_given_up() -> None:
    steps = asked(Asking(), range(1, 401), price=0.04, gain=0.0)
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[-8:] == [32] * 8
    assert gaps == sorted(gaps)


def test_a_gain_below_the_price_does_not_bring_it_back_and_one_above_does() -> None:
    asking = Asking()
    asked(asking, range(1, 301), price=0.2, gain=0.0)
    assert len(asked(asking, range(301, 461), price=0.2, gain=0.1)) <= 40
    asking = Asking()
    asked(asking, range(1, 301), price=0.2, gain=0.0)
    assert len(asked(asking, range(301, 461), price=0.2, gain=2.0)) > 100


def test_gains_below_the_price_count_as_none() -> None:
    steps = asked(Asking(), range(1, 401), price=0.2, gain=0.1)
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[-8:] == [32] * 8


def test_what_costs_nothing_is_always_asked_for() -> None:
    assert len(asked(Asking(), range(1, 101), price=0.0, gain=0.0)) == 100
