"""Over whole runs, in simulated time: what is promised is kept, and what is not asked for costs nothing."""

from __future__ import annotations

from functools import cache

import pytest

from specbatch.config import JobConfig
from specbatch.draft.base import TreeShape
from specbatch.hardware.corrected import CorrectedCosts
from specbatch.hardware.cost import Costs
from specbatch.policy import Calibration, Instruments, make_policy
from specbatch.policy.auto import AutoPolicy
from specbatch.policy.base import StepView
from specbatch.policy.costed import prices
from specbatch.policy.need import LUCK_MARGIN, MARGIN
from specbatch.policy.review import Review
from specbatch.rows import Row
from specbatch.slo import Slo
from tests.policy.world import Guess, Machine, World, row

CORES = Machine(pass_s=0.013, token_s=0.004, prefill_s=0.002, level_s=0.0015, node_s=0.0004)
"""A machine of few cores: soon bound by arithmetic, so that verifying many tokens takes long."""

FEW = Machine(pass_s=0.013, token_s=0.0018, prefill_s=0.002, level_s=0.0011, node_s=0.0002)
"""The same cores with less than 10 tokens in a pass."""

CARD = Machine(pass_s=0.020, token_s=0.0002, prefill_s=0.0001, level_s=0.001, node_s=0.00002)
"""Bound by reading weights: verifying is nearly free."""


def mixed(machine: Machine) -> list[Row]:
    """48 rows: a quarter is promised 0.7 times the time per token of plain decoding, a quarter 1.2 times."""
    plain_ms = 1e3 * machine.verify(48)
    slos = (Slo(tpot_ms=0.7 * plain_ms), Slo(tpot_ms=1.2 * plain_ms), Slo(), Slo())
    tiers = ("tight", "medium", "loose", "loose")
    return [row(i, tiers[i % 4], slos[i % 4], 32 + 7 * i % 16) for i in range(48)]


@cache
def run(policy: str, machine: Machine, top: float) -> World:
    world = World.of(policy, lambda *_: Guess(top), machine)
    world.running = mixed(machine)
    return world.run()


@pytest.mark.parametrize("machine", [CORES, CARD])
def test_promises_that_plain_decoding_breaks_are_kept(machine: Machine) -> None:
    off, auto = run("off", machine, 0.6), run("auto", machine, 0.6)
    assert off.attainment("tight") < 0.4
    assert auto.attainment("tight") >= 0.8
    assert auto.attainment("medium") >= off.attainment("medium")


def test_promises_are_kept_without_much_loss_where_a_pass_is_bound_by_arithmetic() -> None:
    assert run("auto", CORES, 0.6).tokens_per_s >= 0.9 * run("off", CORES, 0.6).tokens_per_s


def test_rest_alone_keeps_promises_where_a_pass_is_bound_by_arithmetic() -> None:
    rested = run("off+deferral", CORES, 0.6)
    assert rested.attainment("tight") >= 0.8
    assert rested.tokens_per_s >= 0.9 * run("off", CORES, 0.6).tokens_per_s


def test_a_row_that_must_be_faster_than_decoding_alone_is_helped_by_drafts_only() -> None:
    slo = Slo(tpot_ms=0.85e3 * FEW.verify(1))
    met = {}
    for policy in ("off+deferral", "auto"):
        world = World.of(policy, lambda *_: Guess(0.8), FEW)
        world.running = [row(i, "tight" if i == 0 else "loose", slo if i == 0 else Slo()) for i in range(2)]
        met[policy] = world.run().attainment("tight")
    assert met == {"off+deferral": 0.0, "auto": 1.0}


@pytest.mark.parametrize(
    ("machine", "top", "rows"), [(CORES, 0.1, 1), (CORES, 0.7, 16), (CARD, 0.05, 4), (CARD, 0.7, 1)]
)
def test_without_promises_nothing_is_lost(machine: Machine, top: float, rows: int) -> None:
    rates = []
    for policy in ("off", "auto"):
        world = World.of(policy, lambda *_: Guess(top, 0.02), machine)
        world.running = [row(i, tokens=max(32, 400 // rows)) for i in range(rows)]
        rates.append(world.run().tokens_per_s)
    assert rates[1] >= 0.95 * rates[0]


def test_nobody_rests_longer_than_min_progress_allows() -> None:
    assert 1 < run("off+deferral", CORES, 0.6).longest_rest <= 8


def test_what_promises_ask_for_is_not_replaced_by_what_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Review, "is_due", lambda *_: True)
    slo = Slo(tpot_ms=0.85e3 * FEW.verify(1))
    world = World.of("auto", lambda *_: Guess(0.8), FEW)
    world.running = [row(0, "tight", slo, 64), *(row(i, "loose", Slo(), 64) for i in range(1, 12))]
    policy, hurried = world.policy, 0
    assert isinstance(policy, AutoPolicy)
    wanted = policy.wanted

    def checked(view: StepView, costs: Costs) -> list[TreeShape | None]:
        nonlocal hurried
        before = policy._standing
        shapes = wanted(view, costs)
        if before is policy._hurry:
            hurried += 1
            assert policy._standing is before
        return shapes

    monkeypatch.setattr(policy, "wanted", checked)
    world.run()
    assert hurried >= 5


def test_what_a_step_takes_besides_counts_for_promises_and_not_for_what_pays() -> None:
    costs = CorrectedCosts(FEW.table())
    view = StepView((row(0, "tight", Slo(), 64),), now=0.0, budget=4)
    before = prices(costs, view, 0.0)
    costs.observe_around(0.004)
    after = prices(costs, view, 0.0)
    assert after[0].tolist() == before[0].tolist()
    assert after[1] - before[1] == pytest.approx(0.004)


def test_who_depends_on_drafts_keeps_more_in_reserve() -> None:
    alone_ms = 1e3 * FEW.table().verify_s(1, 64.0, 1)
    job = JobConfig.model_validate({"input": ("memory",), "policy": "auto"})
    policy = make_policy(job, Instruments(Calibration("head"), FEW.table()))
    assert isinstance(policy, AutoPolicy)
    slopes: list[float] = []
    for tpot_ms in (0.9 * alone_ms, 1.1 * alone_ms):
        own = row(0, "tight", Slo(tpot_ms=tpot_ms), 64)
        own.first_token_at = 0.0
        own.output.extend([1, 1])
        (need,) = policy.needs([own], 0.01 * len(slopes))
        slopes.append(need.lines[0][1] * 1e-3 * tpot_ms)
    assert slopes == pytest.approx([1 / (1 - LUCK_MARGIN), 1 / (1 - MARGIN)])
