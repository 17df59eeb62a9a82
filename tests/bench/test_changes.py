"""The benchmark of sudden changes: who is judged, and what breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.changes import GRACE_STEPS, Breaking, judge
from specbatch.bench.once import Run, run_once
from specbatch.rows import Prompt
from specbatch.slo import Slo
from tests.bench.bench_rig import job, prompts, rig
from tests.engine.drafters import Oracle
from tests.engine.test_speculation import future

BEFORE, AFTER = 8, 24


def rows(tpot_ms: float) -> list[Prompt]:
    promised = [
        replace(row, slo=Slo(tpot_ms=tpot_ms) if i % 2 else Slo()) for i, row in enumerate(prompts(20))
    ]
    return [replace(promised[i % 20], row_index=i, key=f"{i:032x}") for i in range(BEFORE + AFTER)]


def run(some: list[Prompt], broken_from: int | None = None, policy: str = "fixed:3") -> Run:
    here = rig(Oracle(future=future))
    settings = job(policy=policy, max_rows_in_flight=4)
    target = here.fresh(settings)
    assert target.drafter is not None
    if broken_from is not None:
        target = replace(target, drafter=Breaking(target.drafter, broken_from, 32))
    return run_once(target, settings, some, here.clock)


def behind(some: list[Prompt]) -> list[Prompt]:
    return [replace(row, row_index=row.row_index - BEFORE) for row in some[BEFORE:]]


def test_drafts_are_right_up_to_the_change_and_wrong_from_it_on() -> None:
    answers = run(rows(100.0), broken_from=BEFORE).answers
    assert answers[0].drafts.rejected == 0
    assert answers[-1].drafts.accepted == 0
    assert answers[-1].drafts.verified > 0
    assert [answer.token_ids for answer in answers] == [
        answer.token_ids for answer in run(rows(100.0)).answers
    ]


def test_only_rows_with_promises_that_came_in_after_the_grace_are_judged() -> None:
    some = rows(tpot_ms=1.0)
    changed = run(some)
    outcome = judge(changed, run(behind(some)), some, BEFORE)
    admitted = [answer.admitted_at for answer in changed.answers]
    start = admitted[BEFORE]
    assert start is not None
    late = [
        i for i in range(BEFORE + 1, BEFORE + AFTER, 2) if (admitted[i] or 0.0) >= start + outcome.grace_s
    ]
    assert outcome.rows == len(late)
    assert 0 < outcome.rows < AFTER // 2
    within = [end for end in changed.step_ends if start < end <= start + outcome.grace_s]
    assert len(within) == GRACE_STEPS
    assert (outcome.changed, outcome.fresh) == (0.0, 0.0)


def test_the_grace_is_a_tenth_of_the_tightest_promise_where_that_is_longer() -> None:
    some = rows(tpot_ms=2000.0)
    outcome = judge(run(some), run(behind(some)), some, BEFORE)
    assert outcome.grace_s == pytest.approx(0.1 * 2.0 * 12)


def test_what_the_change_cost_is_the_difference_to_a_run_that_began_behind_it() -> None:
    some = rows(tpot_ms=15.0)
    alone = behind(some)
    good, bad = run(alone), run(alone, broken_from=0)
    outcome = judge(run(some), bad, some, BEFORE)
    assert outcome.changed == 1.0
    assert outcome.fresh == 0.0
    assert judge(run(some), good, some, BEFORE).fresh == 1.0
