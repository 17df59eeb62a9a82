"""Rows whose clock starts with their first token begin when the prompts beside them are done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specbatch.policy.starts import held_back
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.slo import Slo
from specbatch.work import Work

TIGHT = Slo(tpot_ms=100.0)


def row(slo: Slo = TIGHT, cached: int = 30, output: int = 0) -> Row:
    """Forty prompt tokens and twenty to write, in flight since 1 s; promised to take 2 s."""
    prompt = Prompt(0, "0" * 32, None, "t", (1,) * 40, SamplingParams(max_tokens=20), slo)
    return Row(prompt, output=[7] * output, cached=cached, admitted_at=1.0)


def last(of: Row) -> Work:
    return Work(of, of.committed - of.cached)


PROMPT = Work(row(cached=0), 16)
"""Goes on in the next step."""


def test_the_last_token_of_a_prompt_waits_for_other_prompts() -> None:
    assert held_back([last(row()), PROMPT], 1.5) == {0: 1}
    assert held_back([last(row(cached=39)), PROMPT], 1.5) == {0: 1}, "when it is the only one, too"


def test_where_no_other_prompt_is_left_all_begin_together() -> None:
    writing = Work(row(cached=42, output=3), 1)
    assert held_back([last(row()), last(row(cached=39)), writing], 1.5) == {}


@pytest.mark.parametrize(
    "slo",
    [Slo(), Slo(deadline=99.0), Slo(tpot_ms=100.0, ttft_ms=5000.0)],
    ids=["nothing promised", "a deadline only", "a first token promised"],
)
def test_others_begin_at_once(slo: Slo) -> None:
    assert held_back([last(row(slo)), PROMPT], 1.5) == {}


def test_a_prompt_that_ends_in_the_step_is_waited_for() -> None:
    assert held_back([last(row()), last(row(Slo()))], 1.5) == {0: 1}


@pytest.mark.parametrize(("slo", "until"), [(TIGHT, 3.0), (replace(TIGHT, deadline=6.5), 2.5)])
def test_nobody_waits_for_longer_than_it_was_promised_to_take(slo: Slo, until: float) -> None:
    work = [last(row(slo)), PROMPT]
    assert held_back(work, until - 0.01) == {0: 1}
    assert held_back(work, until + 0.01) == {}


def test_a_row_that_is_computed_again_goes_on_at_once() -> None:
    assert held_back([last(row(output=5)), PROMPT], 1.5) == {}
