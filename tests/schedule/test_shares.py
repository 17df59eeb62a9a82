"""Guaranteed shares of the tokens: what is due, what is held against a tier, how many rows that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.schedule.shares import Shares

BOTH = {"gold", "loose"}


def test_before_the_first_step_all_that_was_promised_counts_as_claimed() -> None:
    shares = Shares({"loose": 0.1, "batch": 0.25})
    assert shares.claimed == pytest.approx(0.35)
    shares.count({"gold": 8}, {"gold"}, {"gold", "loose"})
    assert shares.claimed == pytest.approx(0.1), "of the others no row waits"


def test_surplus_is_held_against_a_tier_only_while_others_wait() -> None:
    contested, alone = Shares({"loose": 0.25}), Shares({"loose": 0.25})
    for _ in range(4):
        contested.count({"gold": 2, "loose": 2}, BOTH, {"gold"})
        alone.count({"gold": 2, "loose": 2}, BOTH, {"loose"})
    for shares in (contested, alone):
        shares.count({"gold": 8}, {"gold"}, {"loose"})
    assert contested.behind() == [], (
        "it has had 4 tokens more than was due to it, in places that others wanted"
    )
    assert alone.behind() == ["loose"], "2 tokens were due in the last step"


@pytest.mark.parametrize(("step", "rows"), [({"gold": 10}, 1), ({"gold": 15}, 2), ({"gold": 64}, 7)])
def test_a_tier_needs_as_many_rows_as_make_up_its_share_of_a_step(step: dict[str, int], rows: int) -> None:
    shares = Shares({"loose": 0.1})
    shares.count(step, {"gold"}, {"loose"})
    assert shares.rows_due("loose") == rows
    for _ in range(10):
        shares.count(step, {"gold"}, {"loose"})
    assert shares.rows_due("loose") == rows + 1, "more than a step is owed"


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=60))
def test_who_follows_the_rule_gives_a_tier_its_share_but_for_a_step(script: list[tuple[int, bool]]) -> None:
    """Rows of a token each; the tier has one in a step where it is owed one, and others have the rest."""
    shares = Shares({"loose": 0.2})
    for others, wanted in script:
        own = shares.rows_due("loose") if shares.behind() else 0
        shares.count({"gold": others, "loose": own}, BOTH, {"loose", "gold"} if wanted else {"loose"})
    owed = shares.entitled["loose"] - shares.achieved["loose"]
    assert owed <= 1.0 + 0.2 * 8
