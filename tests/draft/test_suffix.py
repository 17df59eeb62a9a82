"""What the suffix drafter proposes, and that it proposes nothing else."""

from __future__ import annotations

import copy
import math
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft.base import TreeShape
from specbatch.draft.continuations import grow
from specbatch.draft.occurrences import END, MAX_MATCH, Match
from specbatch.draft.suffix import SuffixDrafter, SuffixOptions
from specbatch.draft.trust import OTHER_OUTPUTS, OWN_TEXT, Reliability
from specbatch.randomness import Purpose, Stream, gumbel, gumbel_of_few
from specbatch.rows import Row
from specbatch.tree import TokenTree
from tests.draft.rows_in_hand import CHAIN, TREE, ask, make_row, paths


def propose(drafter: SuffixDrafter, row: Row, shape: TreeShape = CHAIN) -> TokenTree:
    (draft,) = drafter.propose([ask(row, shape)])
    draft.tree.check()
    assert draft.passes == 0
    assert draft.flops == 0.0
    return draft.tree


CHANCES = [0.5 + 0.01 * length for length in range(5)]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_probabilities_are_counted_and_the_likeliest_paths_are_taken(
    documents: list[list[int]], levels: int, width: int, nodes: int
) -> None:
    text, places = array("i", [END]), []
    for document in documents:
        places.append(len(text))
        text.extend([*document, END])
    shape = TreeShape(levels, width, nodes)
    grown = grow(9, text, Match(2, tuple(places)), shape, CHANCES, None)
    tree = grown.tree()
    tree.check()
    assert tree.size <= nodes
    seen = Counter(tuple(d[:n]) for d in documents for n in range(len(d) + 1))
    for node in range(1, len(tree)):
        path = tree.path(node)
        behind = sum(
            count for other, count in seen.items() if other[:-1] == path[:-1] and len(other) == len(path)
        )
        expected = CHANCES[min(2 + len(path) - 1, 4)] * seen[path] / behind
        assert math.isclose(tree.log_probs[node], math.log(expected))
    assert len(paths(tree)) == tree.size
    assert math.isclose(grown.expected, sum(math.exp(p) for p in tree.path_log_probs[1:]), abs_tol=1e-12)
    if width == 3 and levels <= 2:  # no candidate is cut away, so the choice is among all of them
        whole = grow(9, text, Match(2, tuple(places)), TreeShape(levels, 3, 99), CHANCES, None)
        assert sorted(grown.paths, reverse=True) == sorted(whole.paths, reverse=True)[: nodes + 1]


def test_a_tree_of_all_nodes_holds_every_continuation() -> None:
    documents = [[1, 2, 3], [1, 2], [1, 4], [5]]
    text, places = array("i", [END]), []
    for document in documents:
        places.append(len(text))
        text.extend([*document, END])
    tree = grow(0, text, Match(2, tuple(places)), TreeShape(3, 5, 50), CHANCES, None).tree()
    assert paths(tree) == {(1,), (1, 2), (1, 2, 3), (1, 4), (5,)}


def test_a_row_that_repeats_its_prompt_is_drafted_from_it() -> None:
    tree = propose(SuffixDrafter(), make_row([10, 11, 12, 13, 14, 15, 16, 17, 1, 2], [10, 11, 12]))
    assert tree.path(tree.size) == (13, 14, 15, 16)


def test_a_row_that_repeats_its_own_output_is_drafted_from_it() -> None:
    tree = propose(SuffixDrafter(), make_row([1], [20, 21, 22, 23, 20, 21]))
    assert tree.path(2) == (22, 23)


@pytest.mark.parametrize("output", [[5, 6, 7], [11, 99, 11], [98, 11]])
def test_without_a_match_of_the_shortest_length_there_is_no_draft(output: list[int]) -> None:
    assert propose(SuffixDrafter(), make_row([10, 11, 12, 13], output)).size == 0


def test_a_short_match_is_not_followed_far() -> None:
    row = make_row([10, 11, *range(30, 60)], [10, 11])
    shape = TreeShape(20, 1, 20)
    assert propose(SuffixDrafter(SuffixOptions(length_factor=2.0)), row, shape).size == 4
    assert propose(SuffixDrafter(SuffixOptions(length_factor=0.5)), row, shape).size == 1


def test_what_earlier_rows_wrote_is_drafted_once_they_end() -> None:
    drafter = SuffixDrafter()
    first, second = make_row([1, 2], [30, 31, 32, 33], 0), make_row([3, 4], [30, 31], 1)
    assert propose(drafter, first).size == 0
    assert propose(drafter, second).size == 0
    drafter.forget(first)
    assert propose(drafter, second).path(2) == (32, 33)


def test_the_end_of_the_prompt_leads_to_how_earlier_outputs_began() -> None:
    drafter = SuffixDrafter()
    drafter.forget(make_row([7, 8, 91, 92], [30, 31, 32], 0))
    tree = propose(drafter, make_row([5, 91, 92], [30], 1))
    assert tree.path(2) == (31, 32)
    fresh = make_row([6, 91, 92], [], 2)
    assert propose(drafter, fresh).path(1) == (30,)


def test_prompts_of_other_rows_are_no_source() -> None:
    drafter = SuffixDrafter()
    drafter.forget(make_row(list(range(10, 40)), [1, 2, 3], 0))
    assert propose(drafter, make_row([5], [20, 21], 1)).size == 0


def test_the_longer_match_in_the_own_text_wins_over_the_index() -> None:
    drafter = SuffixDrafter()
    drafter.forget(make_row([1], [11, 12, 50, 51], 0))
    row = make_row([10, 11, 12, 13, 14], [10, 11, 12], 1)
    assert propose(drafter, row).path(2) == (13, 14)


def test_a_row_that_comes_back_after_preemption_enters_the_index_once() -> None:
    drafter = SuffixDrafter()
    row = make_row([1, 2], [30, 31, 32], 0)
    propose(drafter, row)
    drafter.forget(row)
    drafter.forget(row)
    row.output += [33, 34]
    propose(drafter, row)
    drafter.forget(row)
    tree = propose(drafter, make_row([9], [30, 31], 1), TreeShape(4, 4, 20))
    assert paths(tree) == {(32,)}
    later = propose(drafter, make_row([9], [31, 32], 2), TreeShape(4, 4, 20))
    assert paths(later) == {(33,), (33, 34)}


def test_a_run_starts_without_what_another_one_wrote_or_taught() -> None:
    drafter, row = SuffixDrafter(), make_row([4, 5, 6], [4, 5], 0)
    before = propose(drafter, row)
    row.output += [9, 4, 5]  # the draft was wrong
    propose(drafter, row)
    drafter.forget(row)
    follower = make_row([1], [9, 4], 1)
    assert propose(drafter, follower).size
    drafter.begin()
    assert not propose(drafter, follower).size
    assert propose(drafter, make_row([4, 5, 6], [4, 5], 0)) == before


def test_a_stranger_can_be_forgotten() -> None:
    drafter = SuffixDrafter()
    drafter.forget(make_row([1], [], 0))
    drafter.forget(make_row([1], [5, 6, 7], 1))
    assert propose(drafter, make_row([2], [5, 6], 2)).path(1) == (7,)


def test_a_sampled_row_gets_the_candidate_that_its_noise_favours() -> None:
    prompt = [token for second in (21, 22, 23, 24) for token in (10, 11, second)]
    for index in range(30):
        row = make_row(prompt, [10, 11], index, temperature=1.0)
        request = ask(row, TreeShape(1, 1, 1))
        tree = propose(SuffixDrafter(), row, request.shape)
        noise = gumbel(request.stream, row.committed, torch.tensor([21, 22, 23, 24]))
        assert tree.tokens[1] == 21 + int(noise.argmax())


@settings(deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 10**6), st.lists(st.integers(0, 2**31), min_size=1, max_size=9))
def test_the_noise_is_the_one_the_target_draws(seed: int, position: int, tokens: list[int]) -> None:
    stream = Stream.at(seed, "row", Purpose.TOKEN)
    expected = gumbel(stream, position, torch.tensor(tokens))
    assert torch.allclose(
        torch.tensor(gumbel_of_few(stream, position, tokens), dtype=torch.float64), expected
    )


def test_proposing_changes_no_row_and_repeats_itself() -> None:
    rows = [make_row([1, 2, 3, 1, 2], [3, 1, 2], i, temperature=i % 2) for i in range(4)]
    before = copy.deepcopy([(row.output, row.pages, row.cached) for row in rows])
    requests = [ask(row, TREE) for row in rows]
    one, two = SuffixDrafter(), SuffixDrafter()
    first, again = one.propose(requests), one.propose(requests)
    assert [draft.tree for draft in first] == [draft.tree for draft in again]
    assert [draft.tree for draft in two.propose(requests)] == [draft.tree for draft in first]
    assert [(row.output, row.pages, row.cached) for row in rows] == before


def expected(tree: TokenTree) -> float:
    return float(sum(math.exp(p) for p in tree.path_log_probs[1:]))


def play(drafter: SuffixDrafter, text: Sequence[int], prompt: Sequence[int], index: int) -> None:
    row = make_row(prompt, text[:1], index)
    for token in text[1:]:
        propose(drafter, row)
        row.output.append(token)
    drafter.forget(row)


def test_drafts_that_prove_wrong_promise_less_and_drafts_that_prove_right_promise_more() -> None:
    drafter, question = SuffixDrafter(), make_row([40, 41, 42, 43], [40, 41], 999)
    before = expected(propose(drafter, question))
    for index in range(10):  # pairs of tokens come back, never the third behind them
        play(drafter, [10, 11, 100 + 2 * index, 10, 11, 101 + 2 * index, 10, 11], [1], index)
    after = expected(propose(drafter, make_row([40, 41, 42, 43], [40, 41], 998)))
    assert after < 0.7 * before
    better = SuffixDrafter()
    for index in range(10):
        play(better, [10, 11, 12, 13] * 3, [1], index)
    assert expected(propose(better, make_row([40, 41, 42, 43], [40, 41], 998))) > before


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=300))
def test_reliability_stays_a_probability_and_tends_to_the_rate_of_hits(
    outcomes: list[tuple[int, bool]],
) -> None:
    reliability = Reliability(OWN_TEXT)
    for length, hit in outcomes:
        reliability.record(length, 1.0, hit)
        assert all(0.0 < chance < 1.0 for chance in reliability.chances)
    for trial in range(3000):
        reliability.record(5, 1.0, trial % 4 == 0)
    assert math.isclose(reliability.chances[5], 0.25, abs_tol=0.08)


def test_every_length_of_a_match_has_one_chance_and_no_other_length_is_touched() -> None:
    for assumed in (OWN_TEXT, OTHER_OUTPUTS):
        before = Reliability(assumed).chances
        assert before == sorted(before), "a longer match is at least as good"
        for length in range(1, MAX_MATCH + 1):
            reliability = Reliability(assumed)
            reliability.record(length, 1.0, hit=False)
            touched = {i for i, chance in enumerate(reliability.chances) if chance != before[i]}
            assert length in touched
            assert touched == set(range(min(touched), max(touched) + 1))
            assert len(reliability.chances) == MAX_MATCH + 1


def test_state_is_bounded_by_the_rows_in_flight_and_the_budget() -> None:
    drafter = SuffixDrafter(SuffixOptions(index_tokens=1000))
    size = drafter.num_bytes
    for index in range(200):
        row = make_row(range(50), list(range(100, 130)), index)
        propose(drafter, row)
        assert drafter.num_bytes > size
        drafter.forget(row)
        assert drafter.num_bytes == size
