"""What a step emits has exactly the target's law, whatever is proposed; the known wrong rules do not.

Total variation errors of the wrong rules are asserted as fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.laws.exact import Proposals, Step, Table, Toy, all_trees, any_tree, bounds, fractions
from tests.laws.rules import (
    chain,
    cosine_criterion,
    filtered_after_the_test,
    foreseen_unless,
    fresh_bonus,
    noise_of_the_step,
    nucleus,
    rejection_against,
    sampled_from,
    shared_noise,
    top_of,
)

Tables = Callable[[Toy], Iterator[tuple[Fraction, Table]]]
BOTH: tuple[Tables, ...] = (Toy.independent_tables, Toy.shared_tables)

TWO = Toy((fractions(1, 3), fractions(3, 1), fractions(1, 1), fractions(0, 1), fractions(3, 1)), 3)
THREE = Toy((fractions(1, 1, 1), fractions(1, 0, 2), fractions(2, 1, 0), fractions(0, 1, 2)), 3)
SHORT = Toy((fractions(3, 2, 1), fractions(1, 1, 4), fractions(0, 1, 5), fractions(2, 2, 2)), 2)


def error(toy: Toy, step: Step, proposals: Proposals, tables: Tables = Toy.shared_tables) -> Fraction:
    """How far the law of ``toy.length`` tokens is from the target's; 0: right for every proposal."""
    return bounds(toy, tables(toy), step, proposals).error(toy.law())


def test_the_trees_are_all_there() -> None:
    assert [len(all_trees(2, depth)) for depth in range(3)] == [1, 4, 25]
    trees = all_trees(3, 2)
    assert len(trees) == 9**3
    assert len({frozenset(map(tree.path, range(len(tree)))) for tree in trees}) == len(trees)
    for tree in trees:
        tree.check()


@pytest.mark.parametrize("tables", BOTH)
def test_any_proposal_over_two_tokens(tables: Tables) -> None:
    assert error(TWO, shared_noise, any_tree(TWO, 2), tables) == 0


@pytest.mark.parametrize("tables", BOTH)
def test_joint_of_two_consecutive_steps_over_three_tokens(tables: Tables) -> None:
    assert error(SHORT, shared_noise, any_tree(SHORT, 1), tables) == 0


def test_any_proposal_over_three_tokens() -> None:
    assert error(THREE, shared_noise, any_tree(THREE, 2)) == 0


@pytest.mark.parametrize("dropped", [0, 1, None])
def test_a_drafter_that_foresees_what_the_target_draws(dropped: int | None) -> None:
    """Three of the functions the adversary chooses from, spelt out: the laws are one, the speeds differ."""
    assert error(TWO, shared_noise, foreseen_unless(dropped)) == 0


def test_rejection_sampling_of_a_sampled_draft_passes_the_harness() -> None:
    """A right rule with randomness of its own: the harness does not reject whatever is not ours."""
    q = fractions(1, 1, 2)
    step = sampled_from(q, rejection_against(SHORT, q))
    assert error(SHORT, step, lambda _, __: [chain([])]) == 0


def test_argmax_drafts_tested_with_min_1_p_over_q_are_rejected() -> None:
    toy, q = Toy((fractions(68, 22, 10),), 1), fractions(6, 3, 1)
    assert error(toy, rejection_against(toy, q), top_of(q, 1)) == Fraction(32, 100)


def test_top_k_siblings_with_multi_round_rejection_are_rejected() -> None:
    toy, q = Toy((fractions(30, 20, 50),), 1), fractions(5, 3, 2)
    assert error(toy, rejection_against(toy, q), top_of(q, 2)) == Fraction(3, 10)


def test_a_fresh_bonus_after_a_value_dependent_drop_is_rejected() -> None:
    toy = Toy((fractions(9, 1),), 1)
    assert error(toy, fresh_bonus(toy), foreseen_unless(1)) == Fraction(9, 100)
    assert error(TWO, fresh_bonus(TWO), any_tree(TWO, 2)) > Fraction(1, 10)
    assert error(TWO, fresh_bonus(TWO), lambda _, __: [chain([0])]) > 0


def test_noise_reused_by_the_next_step_is_rejected_by_the_joint_of_two_steps_only() -> None:
    toy = Toy((fractions(4, 4), fractions(7, 1), fractions(7, 1)), 2)
    one_by_one: Proposals = lambda _, __: [chain([])]  # noqa: E731
    assert error(replace(toy, length=1), noise_of_the_step, one_by_one) == 0
    assert error(toy, noise_of_the_step, one_by_one) == Fraction(1, 8)
    assert error(toy, shared_noise, one_by_one) == 0


def test_cosine_similarity_as_the_criterion_is_rejected() -> None:
    toy, q = Toy((fractions(5, 3, 2),), 1), fractions(7, 2, 1)
    step = sampled_from(q, cosine_criterion(toy, q, Fraction(9, 10)))
    assert error(toy, step, lambda _, __: [chain([])]) == Fraction(2, 10)


def test_top_p_after_the_test_is_rejected_and_before_it_is_right() -> None:
    raw = Toy((fractions(3, 2, 1), fractions(1, 3, 2)), 2)
    filtered = replace(raw, laws=tuple(nucleus(p, Fraction(8, 10)) for p in raw.laws))
    trees = any_tree(raw, 1)
    assert error(filtered, shared_noise, trees) == 0
    late = bounds(raw, raw.shared_tables(), filtered_after_the_test(filtered), trees)
    assert late.error(filtered.law()) > Fraction(1, 20)
