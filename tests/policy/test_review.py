"""A choice is weighed again when there is a reason to, and seldom without one."""

from __future__ import annotations

from itertools import pairwise

from specbatch.draft.base import TreeShape
from specbatch.policy.menu import NOTHING, Choice
from specbatch.policy.review import EVERY, Review
from specbatch.policy.standing import Standing
from specbatch.rows import Row
from tests.draft.rows_in_hand import make_row

CHAIN = Choice(TreeShape(2, 1, 2))
ROWS = [make_row([i], [2]) for i in range(64)]


def pauses(review: Review, choice: Choice, rows: list[Row], steps: int, seen: int = 0) -> list[int]:
    """Steps between one look and the next, the same choice found every time."""
    standing, looked = Standing(), []
    for step in range(1, steps):
        if review.is_due(step, seen, standing, rows):
            standing = Standing(choice, frozenset(rows), until=review.found(step, seen, choice, rows))
            looked.append(step)
    return [later - earlier for earlier, later in pairwise(looked)]


def test_looks_become_rare_while_the_answer_stays_the_same() -> None:
    assert pauses(Review(), NOTHING, ROWS[:1], 300) == [2 * EVERY, *[4 * EVERY] * 4]
    assert pauses(Review(), CHAIN, ROWS[:1], 160) == [EVERY, *[2 * EVERY] * 4]


def test_drafts_that_were_seen_are_a_reason_and_the_more_are_known_the_more_it_takes() -> None:
    review, looked, standing = Review(), [], Standing()
    for step in range(1, 40):  # a draft in each
        if review.is_due(step, step, standing, ROWS[:1]):
            standing = Standing(CHAIN, frozenset(ROWS[:1]), until=review.found(step, step, CHAIN, ROWS[:1]))
            looked.append(step)
    assert looked[:6] == [1, 2, 3, 5, 7, 10]
    assert all(later > 1.3 * earlier for earlier, later in pairwise(looked[3:]))


def test_a_number_of_rows_for_which_nothing_was_found_need_not_be_looked_at_again() -> None:
    review = Review()
    for rows in (ROWS[:2], ROWS[:1]):
        assert review.is_due(1, 0, Standing(), rows)
        review.found(1, 0, NOTHING, rows)
    one_for_another = [review.is_due(step, 0, Standing(), ROWS[: 1 + step % 2]) for step in range(2, 20)]
    assert not any(one_for_another)
    assert review.is_due(2, 0, Standing(), ROWS[:3])
    assert review.is_due(2, 1, Standing(), ROWS[:2]), "something new is known"


def test_where_nothing_is_drafted_a_few_rows_among_many_are_no_reason() -> None:
    review = Review()
    review.found(1, 0, NOTHING, ROWS)
    assert not review.is_due(2, 0, Standing(), ROWS[:50])
    assert review.is_due(2, 0, Standing(), ROWS[:40])


def test_drafting_for_others_than_the_choice_was_made_for_is_a_reason() -> None:
    review = Review()
    standing = Standing(CHAIN, frozenset(ROWS[:8]), until=review.found(1, 9, CHAIN, ROWS[:8]))
    assert not review.is_due(2, 9, standing, ROWS[:8])
    assert not review.is_due(2, 9, standing, ROWS[1:8])
    assert review.is_due(2, 9, standing, ROWS[2:10])


def test_another_choice_begins_with_short_pauses_and_forgets_what_nothing_was_found_for() -> None:
    review = Review()
    assert review.found(1, 0, NOTHING, ROWS[:1]) == 1 + 2 * EVERY
    assert review.found(40, 0, CHAIN, ROWS[:1]) == 40 + EVERY
    assert review.found(50, 0, NOTHING, ROWS[:2]) == 50 + EVERY
    assert review.is_due(51, 0, Standing(), ROWS[:1])
