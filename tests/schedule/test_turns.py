"""When a row had better begin later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specbatch.hardware.corrected import CorrectedCosts
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.schedule.foresight import Foresight
from specbatch.schedule.turns import TURNS, Turns
from specbatch.slo import Slo
from tests.hardware.costs import table

ALONE_MS = 1e3 * table(draft=False).step_s(1, 64.0, 1, 0)
TIGHT = Slo(tpot_ms=1.02 * ALONE_MS)
OWN_S = 1e-3 * 1.02 * ALONE_MS * 20
"""Seconds that such a row was promised to take."""


def row(index: int, slo: Slo = TIGHT) -> Row:
    return Row(Prompt(index, f"key{index}", None, "fast", (1, 2, 3), SamplingParams(max_tokens=20), slo=slo))


@pytest.fixture
def turns() -> Turns:
    return Turns(Foresight(CorrectedCosts(table(draft=False)), 128, drafts=False))


def test_beside_nobody_a_row_begins(turns: Turns) -> None:
    assert not turns.waits(row(0), 0.0, [])


def test_a_row_waits_for_others_as_long_as_four_like_it_take(turns: Turns) -> None:
    late = row(1)
    assert turns.waits(late, 0.0, [row(0)])
    assert turns.waits(late, TURNS * OWN_S, [row(0)])
    assert not turns.waits(late, 1.01 * TURNS * OWN_S, [row(0)])


@pytest.mark.parametrize(
    ("slo", "until"),
    [
        (replace(TIGHT, deadline=4.0 * OWN_S), 2.0 * OWN_S),
        (replace(TIGHT, ttft_ms=1e3 * OWN_S), 0.5 * OWN_S),
    ],
    ids=["deadline", "first token"],
)
def test_other_promises_are_not_risked_for_it(turns: Turns, slo: Slo, until: float) -> None:
    assert turns.waits(row(1, slo), 0.99 * until, [row(0)])
    assert not turns.waits(row(1, slo), 1.01 * until, [row(0)])


def test_who_has_time_begins(turns: Turns) -> None:
    assert not turns.waits(row(1, Slo(tpot_ms=3.0 * ALONE_MS)), 0.0, [row(0)])
    assert not turns.waits(row(1, Slo()), 0.0, [row(0)])


def test_only_a_few_wait_at_a_time(turns: Turns) -> None:
    waiting = [row(i) for i in range(1, TURNS + 2)]
    assert [turns.waits(each, 0.0, [row(0)]) for each in waiting] == [True] * TURNS + [False]
    turns.forget(waiting[0])
    assert turns.waits(waiting[-1], 0.0, [row(0)])
    waiting[1].admitted_at = 0.0
    assert turns.waits(row(50), 0.0, [row(0)]), "the second one has begun"
