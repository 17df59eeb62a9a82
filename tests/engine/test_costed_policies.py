"""Policies that count with costs, on the table model: whoever drafts or sits out, no row's text changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbatch.draft.base import Drafter, TreeShape
from specbatch.draft.combination import FirstThen
from specbatch.engine.loop import Loop, Target
from specbatch.engine.speculation import within
from specbatch.hardware.corrected import CorrectedCosts
from specbatch.hardware.cost import CostTable
from specbatch.ledger import EngineStats
from specbatch.rows import Prompt, SamplingParams
from specbatch.slo import Slo
from tests.engine.table_model import CONFIG, PromptFeed, StepClock, TableExecutor, word_tokenizer
from tests.engine.test_loop import decode_alone, job, prompt
from tests.engine.test_speculation import DRAFTERS, MIXED, check_account
from tests.hardware.costs import table

STEP_S = 0.02
SLOS = (
    Slo(),
    Slo(tpot_ms=25.0),
    Slo(deadline=14.0),
    Slo(tpot_ms=1.0),
    Slo(ttft_ms=10.0),
    Slo(deadline=0.5),
    Slo(tpot_ms=500.0, deadline=40.0),
)
"""None, tight, far, lost from the start, of the first token, near, and two at once."""

Texts = dict[int, tuple[int, ...]]


def promised(index: int) -> Prompt:
    """Seven kinds of rows, each with other promises every time."""
    kind = MIXED[index % 7]
    params = replace(kind.params, max_tokens=min(12, kind.params.max_tokens))
    return replace(
        kind, row_index=index, key=f"key{index}", params=params, slo=SLOS[(index + index // 7) % 7]
    )


ROWS = [promised(index) for index in range(14)]


@pytest.fixture(scope="module")
def plain() -> Texts:
    return {row.row_index: tuple(decode_alone(row)) for row in ROWS}


def answers(
    policy: str,
    drafter: Drafter | None,
    profile: CostTable | None,
    rows: Sequence[Prompt] = ROWS,
    limits: tuple[int, int] = (14, 200),
) -> tuple[Texts, EngineStats]:
    """Texts and totals of one run, every invariant checked after each step; limits are rows and pages."""
    in_flight, pages = limits
    settings = job(policy=policy, max_rows_in_flight=in_flight, prefill_chunk=5)
    host = StepClock(STEP_S)
    target = Target(CONFIG, word_tokenizer(), TableExecutor(num_pages=pages), drafter, profile=profile)
    loop = Loop(target, settings, PromptFeed(rows, settings), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    for answer in host.answers.values():
        check_account(answer)
    return {index: answer.token_ids for index, answer in host.answers.items()}, loop.finish()


@pytest.mark.parametrize("policy", ["dspark", "adaserve", "auto"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_tokens_equal_plain_decoding(name: str, policy: str, plain: Texts) -> None:
    for limits in ((14, 200), (14, 40), (4, 30), (1, 30)):
        rows = ROWS if limits[0] == 14 else ROWS[: 3 + 2 * limits[0]]
        texts, _ = answers(policy, DRAFTERS[name](), table(), rows, limits)
        assert texts == {row.row_index: plain[row.row_index] for row in rows}


@pytest.mark.parametrize("policy", ["dspark", "adaserve", "auto"])
@pytest.mark.parametrize("name", ["oracle", "half right", "nonsense"])
def test_tokens_of_two_drafters_equal_plain_decoding(name: str, policy: str, plain: Texts) -> None:
    for limits in ((14, 200), (14, 40), (1, 30)):
        rows = ROWS if limits[0] == 14 else ROWS[:5]
        texts, stats = answers(
            policy, FirstThen(DRAFTERS[name](), DRAFTERS["oracle"]()), table(), rows, limits
        )
        assert texts == {row.row_index: plain[row.row_index] for row in rows}
        assert stats.drafts.drafted > 0


@pytest.mark.parametrize(("room", "levels", "free"), [(9, 2, 7), (7, 2, 7), (4, 2, 4), (1, 1, 1)])
def test_memory_bounds_what_is_free_as_well(room: int, levels: int, free: int) -> None:
    found = within(TreeShape(2, 1, 2, free_levels=7), room)
    assert found == TreeShape(levels, 1, levels, free_levels=free)


@pytest.mark.parametrize("policy", ["off+deferral", "auto"])
def test_rows_that_sit_out_lose_time_and_no_text(policy: str, plain: Texts) -> None:
    drafter = None if policy == "off+deferral" else DRAFTERS["silent"]()
    texts, stats = answers(policy, drafter, table())
    assert stats.rested > 0, "somebody sat out"
    assert texts == plain


@pytest.mark.parametrize("policy", ["off+deferral", "dspark", "adaserve", "auto"])
def test_without_a_profile_rows_are_decoded_plainly_and_the_reason_is_told(policy: str, plain: Texts) -> None:
    texts, stats = answers(policy, DRAFTERS["oracle"](), None)
    assert texts == plain
    assert (stats.drafts.drafted, stats.rested) == (0, 0)
    assert "profile" in stats.policy_notice


@pytest.mark.parametrize("policy", ["dspark", "auto"])
def test_a_row_expects_a_token_of_every_step_that_it_sums_up(policy: str) -> None:
    settings = job(policy=policy, max_rows_in_flight=14, prefill_chunk=5)
    host = StepClock(STEP_S)
    target = Target(CONFIG, word_tokenizer(), TableExecutor(), DRAFTERS["oracle"](), profile=table())
    loop = Loop(target, settings, PromptFeed(ROWS, settings), host)
    while loop.rows_left():
        loop.step()
    ends = [entry for entry in host.entries if entry.event == "row" and entry.expected is not None]
    assert ends
    for end in ends:
        assert end.steps is not None
        assert end.tokens is not None
        assert end.expected is not None
        assert end.steps - 1e-9 <= end.expected <= 4 * end.tokens


def test_a_profile_that_does_not_fit_is_told() -> None:
    settings = job(policy="auto")
    target = Target(CONFIG, word_tokenizer(), TableExecutor(), DRAFTERS["oracle"](), profile=table())
    loop = Loop(target, settings, PromptFeed(ROWS, settings), StepClock(STEP_S))
    assert loop.finish().profile_drift == ""
    assert loop.costs is not None
    for _ in range(15):
        loop.costs.observe_pass((4, 64.0, 4, 0), 2.0 * table().step_s(4, 64.0, 4, 0))
    assert loop.finish().profile_drift == "passes took 2 times and drafts took 2 times"


def test_what_the_target_decides_is_learnt() -> None:
    _, stats = answers("dspark", DRAFTERS["oracle"](), table())
    assert stats.policy_notice == ""
    overall = stats.calibration["overall"]
    flat = stats.as_dict()
    assert flat["calibration.candidates"] == overall["candidates"]
    assert flat["calibration.ece_sum"] == pytest.approx(overall["ece"] * overall["candidates"])
    assert isinstance(overall, dict)
    assert overall["candidates"] > 50
    assert overall["accepted"] > 0.9


def test_a_draft_that_takes_in_a_prompt_first_says_nothing_about_what_drafts_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int, int]] = []

    def observe(_costs: CorrectedCosts, work: tuple[int, int, int], real: float) -> None:
        told.append(work)

    monkeypatch.setattr(CorrectedCosts, "observe_draft", observe)
    for length in (6, 40):
        told.clear()
        kind = replace(prompt(0, [1 + i % 9 for i in range(length)]), params=SamplingParams(max_tokens=12))
        _, stats = answers("dspark", DRAFTERS["nonsense"](), table(), [kind], limits=(1, 30))
        assert stats.drafts.draft_passes > 20
        # Ten steps draft; the first of them after a long prompt is left out.
        assert len(told) == (10 if length == 6 else 9)
