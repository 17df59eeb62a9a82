"""Joules as objective and a cap on power, on a machine whose power is known."""

from __future__ import annotations

import pytest

from specbatch.rows import Prompt, SamplingParams
from specbatch.slo import Slo
from tests.engine.powered import Outcome, Powers, run
from tests.engine.test_loop import decode_alone, job, prompt

NOTHING_PROMISED = Slo()
THIRSTY = Powers(idle_w=15.0, pass_j=0.1, token_j=0.8, draft_j=0.1)
"""Verifying costs far more energy than waiting: drafted tokens have to be good to be worth it."""


def rows(count: int, tokens: int = 40, slo: Slo = NOTHING_PROMISED) -> list[Prompt]:
    """Rows with texts of their own."""
    params = SamplingParams(max_tokens=tokens, temperature=0.7)
    return [prompt(i, [1 + i % 29, 2 + i % 7, 3 + i % 11], params=params, slo=slo) for i in range(count)]


def check_texts(outcome: Outcome, prompts: list[Prompt]) -> None:
    for each in prompts:
        assert outcome.host.answers[each.row_index].token_ids == tuple(decode_alone(each))


@pytest.fixture(scope="module")
def free() -> Outcome:
    """Without a cap."""
    return run(rows(60), job(policy="auto", max_rows_in_flight=16), Powers())


@pytest.mark.parametrize(("policy", "share"), [("auto", 0.7), ("auto", 0.9), ("fixed:3", 0.8), ("off", 0.8)])
def test_the_cap_holds_and_no_text_changes(policy: str, share: float, free: Outcome) -> None:
    cap = share * max(free.windows())
    prompts = rows(60)
    capped = run(prompts, job(policy=policy, max_rows_in_flight=16, power_cap=cap), Powers())
    windows = capped.windows()
    assert len(windows) > 15
    assert sum(watts > cap for watts in windows) <= 0.01 * len(windows)
    check_texts(capped, prompts)
    reasons = {entry.reason for entry in capped.host.entries if entry.event == "power"}
    assert "room below the cap" in reasons


def test_speculation_shrinks_before_rows_do(free: Outcome) -> None:
    cap = 0.85 * max(free.windows())
    capped = run(rows(60), job(policy="fixed:3", max_rows_in_flight=16, power_cap=cap), Powers())
    assert capped.stats.fallback == "power cap"
    assert capped.stats.drafts.verified > 0
    assert capped.stats.row_passes / capped.stats.steps > 4


def test_a_cap_below_one_row_has_pauses_and_ends() -> None:
    prompts = rows(3, tokens=12)
    alone = run(prompts, job(policy="off", max_rows_in_flight=1), Powers())
    cap = 0.5 * (Powers().idle_w + max(alone.windows(0.1)))
    capped = run(prompts, job(policy="off", power_cap=cap), Powers())
    assert capped.host.time > 1.3 * alone.host.time
    assert max(capped.windows()) <= cap
    check_texts(capped, prompts)


def test_tokens_per_joule_beats_tokens_per_second_in_joules_per_token() -> None:
    prompts = rows(60)
    settings = {"policy": "auto", "max_rows_in_flight": 5}
    powers = Powers(idle_w=15.0, pass_j=0.1, token_j=2.0, draft_j=0.3)
    fast = run(prompts, job(**settings), powers)
    frugal = run(prompts, job(objective="tokens_per_joule", **settings), powers)
    assert fast.stats.drafts.verified > 0
    assert frugal.joules_per_token < 0.95 * fast.joules_per_token
    check_texts(fast, prompts)
    check_texts(frugal, prompts)


def test_promises_come_before_joules() -> None:
    prompts = rows(12, slo=Slo(tpot_ms=22.0))
    settings = {"policy": "auto", "max_rows_in_flight": 4}
    fast = run(prompts, job(**settings), THIRSTY)
    frugal = run(prompts, job(objective="tokens_per_joule", **settings), THIRSTY)
    kept = [sum(bool(a.slo_met) for a in each.host.answers.values()) for each in (fast, frugal)]
    assert kept[1] >= kept[0] - 1
    check_texts(frugal, prompts)
