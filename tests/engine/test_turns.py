"""Rows whose time per token cannot be kept beside each other: one after the other it can."""

from __future__ import annotations

import pytest

from specbatch.engine.oversight import Oversight
from specbatch.schedule import turns
from specbatch.slo import Slo
from tests.engine.overload import TOKEN_S, Outcome, row, run
from tests.engine.test_loop import job
from tests.hardware.costs import pass_s

FAST = Slo(tpot_ms=1.1e3 * TOKEN_S)
"""Alone a row keeps this, beside another one it does not."""


def outcome(fast: int, slo: Slo = FAST) -> Outcome:
    """So many rows in a hurry, and two that have time."""
    rows = [row(i, "fast", slo) for i in range(fast)]
    rows += [row(90 + i, "slow") for i in range(2)]
    tiers = {"fast": {"priority": 0}, "slow": {"priority": 5, "min_progress": 40}}
    return run(rows, job(policy="auto", max_rows_in_flight=8, tiers=tiers))


def kept(found: Outcome) -> list[bool | None]:
    return [answer.slo_met for _, answer in sorted(found.answers.items()) if answer.tier == "fast"]


def test_they_take_turns_and_nobody_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pass_s(2, 2, 20) > 1e-3 * 1.1e3 * TOKEN_S
    assert kept(outcome(3)) == [True, True, True]
    monkeypatch.setattr(turns, "TURNS", 0)
    assert sum(map(bool, kept(outcome(3)))) < 2, "this is what taking turns is for"


def test_a_crowd_does_not_stand_in_line_all_night() -> None:
    found = outcome(30)
    assert sum(map(bool, kept(found))) >= turns.TURNS
    one_by_one = 30 * 12 * TOKEN_S
    assert found.host.time < 0.8 * one_by_one


def test_who_was_promised_a_first_token_soon_does_not_wait() -> None:
    soon = Slo(tpot_ms=FAST.tpot_ms, ttft_ms=6e3 * TOKEN_S)
    found = outcome(2, soon)
    ttft = [answer.ttft_s for answer in found.answers.values() if answer.tier == "fast"]
    assert all(each is not None and each <= 6 * TOKEN_S for each in ttft)


def test_a_row_that_has_nothing_to_win_does_not_keep_others_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost those in flight their promises, and stands first in line."""
    monkeypatch.setattr(
        Oversight, "harms", lambda _self, row, _now, running: row.prompt.row_index == 0 and bool(running)
    )
    rows = [row(1, "fast", Slo(deadline=1e3)), row(0, "fast", Slo(deadline=2e3)), row(2, "slow")]
    tiers = {"fast": {"priority": 0}, "slow": {"priority": 5}}
    found = run(rows, job(policy="auto", max_rows_in_flight=8, tiers=tiers))
    admitted = {index: answer.admitted_at for index, answer in found.answers.items()}
    assert admitted[1] == admitted[2] == 0.0
    assert admitted[0] is not None
    assert admitted[0] > 0.0
