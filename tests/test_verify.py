"""Verification: both walks agree, the text is the target's own, filters and stops act inside a run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.engine.commit import Voice, commit_tokens
from specbatch.randomness import Purpose, Stream
from specbatch.rows import FinishReason, Prompt, Row, SamplingParams
from specbatch.sampling import Draw, choose_one, distribution
from specbatch.tree import TokenTree
from specbatch.verify import Verdict, Visit, walk, walk_level_by_level
from tests.engine.table_model import word_tokenizer
from tests.trees import VOCAB, trees

STREAM = Stream.at(0, "row", Purpose.TOKEN)


def text(tree: TokenTree, verdict: Verdict) -> list[int]:
    accepted = tree.tokens[list(verdict.path)].tolist()
    return accepted if verdict.bonus is None else [*accepted, verdict.bonus]


def table_token(seed: int, path: tuple[int, ...], poison: int = 0) -> int | None:
    """A target whose token is a hash of the path; one in ``poison`` contexts has no number."""
    number = hash((seed, path))
    return None if poison and number % poison == 0 else number // 7 % VOCAB


@settings(max_examples=200, deadline=None)
@given(st.lists(trees(), max_size=5), st.integers(0, 10**6), st.sampled_from([0, 4]))
def test_both_walks_agree_and_visit_the_same_nodes(forest: list[TokenTree], seed: int, poison: int) -> None:
    asked: list[set[tuple[int, tuple[int, ...]]]] = [set() for _ in forest]
    levels: list[list[tuple[int, int, tuple[int, ...]]]] = []

    def alone(index: int) -> Verdict:
        def choose(node: int, path: tuple[int, ...]) -> int | None:
            assert path == forest[index].path(node)
            asked[index].add((node, path))
            return table_token(seed + index, path, poison)

        return walk(forest[index], choose)

    def together(visits: Sequence[Visit]) -> list[int | None]:
        levels.append([(v.tree_index, v.node, v.path_tokens) for v in visits])
        return [table_token(seed + v.tree_index, v.path_tokens, poison) for v in visits]

    assert walk_level_by_level(forest, together) == [alone(index) for index in range(len(forest))]
    for depth, level in enumerate(levels):
        assert all(len(path) == depth for _, _, path in level)
        assert len({index for index, _, _ in level}) == len(level)
    assert [(i, *visit) for i, visits in enumerate(asked) for visit in sorted(visits)] == sorted(
        visit for level in levels for visit in level
    )


@settings(max_examples=200, deadline=None)
@given(trees(), st.integers(0, 10**6))
def test_the_text_is_the_targets_own_for_any_tree(tree: TokenTree, seed: int) -> None:
    verdict = walk(tree, lambda _, path: table_token(seed, path))
    plain: list[int] = []
    while len(plain) <= len(verdict.path):
        token = table_token(seed, tuple(plain))
        assert token is not None
        plain.append(token)
    assert text(tree, verdict) == plain
    assert verdict.bonus is not None
    last = verdict.path[-1] if verdict.path else 0
    assert tree.child(last, verdict.bonus) is None, "the walk ended early"


def test_a_node_without_numbers_ends_the_walk_and_keeps_what_came_before() -> None:
    tree = TokenTree.chain(1, [5, 6, 7], [-1.0] * 3)
    answers = {(): 5, (5,): 6, (5, 6): None}
    assert walk(tree, lambda _, path: answers[path]) == Verdict((1, 2), None)


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 2**31), st.floats(0.1, 0.9))
def test_top_p_applies_before_the_test(tree: TokenTree, seed: int, top_p: float) -> None:
    """Drafting a token outside the nucleus does not bring it into the text."""
    params = SamplingParams(temperature=1.0, top_p=top_p)
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    nucleus = set(distribution(row.to(torch.float64), params).tokens.tolist())

    def choose(_node: int, path: tuple[int, ...]) -> int:
        return choose_one(row, Draw(params, STREAM, seed + len(path), ()))

    assert set(text(tree, walk(tree, choose))) <= nucleus


STOP_IS = {
    "an end-of-sequence token": (frozenset({12}), ()),
    "a stop string": (frozenset(), ("a12",)),
}


@pytest.mark.parametrize("what", STOP_IS)
@pytest.mark.parametrize(
    ("allowed", "kept", "reason"),
    [
        (2, [10, 11], FinishReason.LENGTH),
        (3, [10, 11, 12], FinishReason.STOP),
        (9, [10, 11, 12], FinishReason.STOP),
    ],
)
def test_a_stop_inside_an_accepted_run_ends_the_row(
    what: str, allowed: int, kept: list[int], reason: FinishReason
) -> None:
    """``[10, 11, STOP, 20]`` accepted at once: stop beats length, and nothing comes behind it."""
    eos_ids, stop = STOP_IS[what]
    tree = TokenTree.chain(1, [10, 11, 12], [-1.0] * 3)
    run = text(tree, walk(tree, lambda _, path: [10, 11, 12, 20][len(path)]))
    assert run == [10, 11, 12, 20]
    params = SamplingParams(max_tokens=allowed, stop=stop)
    row = Row(Prompt(0, "0" * 32, None, "standard", (1,), params))
    voice = Voice.of(row, 0, word_tokenizer())
    assert commit_tokens(row, voice, run, eos_ids) is reason
    assert row.output == kept


def test_a_run_that_does_not_end_is_committed_whole() -> None:
    row = Row(Prompt(0, "0" * 32, None, "standard", (1,), SamplingParams(max_tokens=9)))
    voice = Voice.of(row, 0, word_tokenizer())
    assert commit_tokens(row, voice, [10, 11, 12, 20], frozenset()) is None
    assert row.output == [10, 11, 12, 20]
