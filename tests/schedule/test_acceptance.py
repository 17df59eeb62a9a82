"""What is remembered of drafts: everybody's, and each row's own."""

from __future__ import annotations

from specbatch.schedule.acceptance import Acceptance
from tests.draft.rows_in_hand import make_row


def test_a_row_is_judged_by_the_better_of_its_own_and_everybodys() -> None:
    known, copy, story = Acceptance(), make_row([1], [2]), make_row([2], [2])
    for _ in range(40):
        known.learn(copy, 4, 4)
        known.learn(story, 4, 0)
    everybody = known.at_best(make_row([3], [2]))
    assert 0.6 < everybody < 0.9
    assert known.at_best(copy) > 0.95
    assert known.at_best(story) == everybody


def test_a_few_tokens_say_nothing_about_a_row_and_what_left_is_forgotten() -> None:
    known, row = Acceptance(), make_row([1], [2])
    for _ in range(60):
        known.learn(make_row([2], [2]), 4, 0)
    everybody = known.at_best(row)
    known.learn(row, 1, 1)
    assert known.at_best(row) < 0.5
    for _ in range(4):
        known.learn(row, 2, 2)
    assert known.at_best(row) > 0.95
    known.forget(row)
    assert known.at_best(row) < everybody + 0.2


def test_nothing_is_tried_behind_the_first_rejected_token() -> None:
    eager, careful = Acceptance(), Acceptance()
    row = make_row([1], [2])
    for _ in range(20):
        eager.learn(row, 8, 1)
        careful.learn(row, 2, 1)
    assert eager.at_best(row) == careful.at_best(row)
