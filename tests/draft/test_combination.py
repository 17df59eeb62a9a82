"""Two drafters in order: who is asked about which row, and what comes out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from specbatch.draft.base import Draft, DraftRequest, Observed, TreeShape
from specbatch.draft.combination import FirstThen, expected_accepted
from specbatch.draft.suffix import SuffixDrafter
from specbatch.rows import Row
from specbatch.tree import TokenTree
from tests.draft.rows_in_hand import CHAIN, TREE, ask, make_row, paths


@dataclass
class Scripted:
    """A drafter that proposes one chain for every row and notes what it is called with."""

    name: str
    tokens: Sequence[int]
    probability: float
    captured: tuple[int, ...] = ()
    faults: int = 0
    begun: int = 0
    asked: list[list[int]] = field(default_factory=list)
    seen: list[Observed] = field(default_factory=list)
    forgotten: list[Row] = field(default_factory=list)

    def begin(self) -> None:
        self.begun += 1

    def observe(self, observed: Sequence[Observed]) -> None:
        self.seen.extend(observed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked.append([request.row.prompt.row_index for request in requests])
        drafts = []
        for request in requests:
            tokens = list(self.tokens)[: request.shape.levels]
            chances = [math.log(self.probability)] * len(tokens)
            drafts.append(
                Draft(TokenTree.chain(request.row.token(request.row.committed - 1), tokens, chances), 2, 5.0)
            )
        return drafts

    def forget(self, row: Row) -> None:
        self.forgotten.append(row)


def head(tokens: Sequence[int] = (1, 2, 3, 4), probability: float = 0.9) -> Scripted:
    return Scripted("head", tokens, probability, captured=(2, 15, 27))


def test_names_and_captured_layers_are_joined() -> None:
    both = FirstThen(SuffixDrafter(), head())
    assert both.name == "suffix+head"
    assert both.captured == (2, 15, 27)
    with pytest.raises(ValueError, match="captures no layers"):
        FirstThen(head(), SuffixDrafter())


def test_expected_tokens_are_the_sum_of_path_probabilities() -> None:
    assert expected_accepted(TokenTree.root(1)) == 0.0
    assert math.isclose(expected_accepted(TokenTree.chain(1, [2, 3], [math.log(0.5)] * 2)), 0.75)


def test_the_second_is_asked_in_one_call_about_the_rows_where_the_first_has_nothing_good() -> None:
    copying = make_row([10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], list(range(10, 18)), 0)
    fresh = [make_row([30 + i], [40 + i], i) for i in (1, 2)]
    second = head()
    both = FirstThen(SuffixDrafter(), second)
    drafts = both.propose([ask(fresh[0]), ask(copying), ask(fresh[1])])
    assert second.asked == [[1, 2]]
    assert [draft.tree.path(draft.tree.size) for draft in drafts] == [
        (1, 2, 3, 4),
        (18, 19, 20, 21),
        (1, 2, 3, 4),
    ]
    assert [(draft.passes, draft.flops) for draft in drafts] == [(2, 5.0), (0, 0.0), (2, 5.0)]


def test_the_second_is_not_called_when_the_first_will_do_for_all() -> None:
    second = head()
    FirstThen(Scripted("sure", [5, 6, 7, 8], 0.99), second).propose([ask(make_row([1]))])
    assert second.asked == []


def test_of_two_chains_the_more_promising_is_taken_and_trees_are_joined() -> None:
    row = make_row([1], [9])
    weak = Scripted("weak", [5, 6], 0.3)
    (chain,) = FirstThen(weak, head(probability=0.9)).propose([ask(row, CHAIN)])
    assert paths(chain.tree) == {(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)}
    (chain,) = FirstThen(weak, head(probability=0.1)).propose([ask(row, CHAIN)])
    assert paths(chain.tree) == {(5,), (5, 6)}
    (tree,) = FirstThen(weak, head(probability=0.9)).propose([ask(row, TREE)])
    assert paths(tree.tree) == {(1,), (1, 2), (1, 2, 3), (5,), (5, 6)}
    assert (tree.passes, tree.flops) == (4, 10.0)


DEEPER = TreeShape(2, 1, 2, free_levels=6)


def test_a_chain_of_the_first_goes_deeper_than_one_of_the_second() -> None:
    row = make_row([1], [9])
    second = head([1, 2, 3, 4, 5, 6])
    (chain,) = FirstThen(Scripted("sure", [5, 6, 7, 8, 5, 6, 7], 0.9), second).propose([ask(row, DEEPER)])
    assert chain.tree.tokens.tolist() == [9, 5, 6, 7, 8, 5, 6]
    assert chain.sources is not None
    assert chain.sources.tolist() == [1] * 7
    assert second.asked == []
    (chain,) = FirstThen(Scripted("weak", [5] * 7, 0.3), second).propose([ask(row, DEEPER)])
    assert chain.tree.tokens.tolist() == [9, 1, 2], "each level of the second takes a pass"
    assert chain.discarded == 6


def test_depth_counts_where_the_two_are_compared() -> None:
    row = make_row([1], [9])
    second = head(probability=0.6)
    both = FirstThen(Scripted("fair", [5] * 7, 0.45), second)
    assert paths(both.propose([ask(row, TreeShape(2, 1, 2))])[0].tree) == {(1,), (1, 2)}
    assert len(second.asked) == 1
    assert both.propose([ask(row, DEEPER)])[0].tree.size == 6
    assert len(second.asked) == 1, "two tokens of the second would be no more"
    doubtful = head(probability=0.3)
    (chain,) = FirstThen(Scripted("fair", [5] * 7, 0.4), doubtful).propose([ask(row, DEEPER)])
    assert chain.tree.tokens.tolist() == [9, *[5] * 6]
    assert len(doubtful.asked) == 1


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_free_levels_that_are_no_deeper_change_nothing(levels: int) -> None:
    shape = TreeShape(2, 1, 2, free_levels=levels)
    assert (shape.deepest, shape.most) == (2, 2)
    (chain,) = FirstThen(Scripted("sure", [5, 6, 7], 0.9), head()).propose([ask(make_row([1], [9]), shape)])
    assert paths(chain.tree) == {(5,), (5, 6)}


def test_chains_alone_have_free_levels() -> None:
    assert (DEEPER.deepest, DEEPER.most) == (6, 6)
    for width, levels in ((2, 6), (1, -1)):
        with pytest.raises(ValueError, match="free"):
            TreeShape(2, width, 4, free_levels=levels)


def test_near_the_end_of_a_row_the_bar_is_as_low_as_the_tree() -> None:
    second = head()
    both = FirstThen(Scripted("sure", [5, 6, 7, 8], 0.9), second)
    both.propose([ask(make_row([1]), TreeShape(1, 1, 1))])
    assert second.asked == []


def learn(both: FirstThen, row: Row, tokens: Sequence[int], steps: int) -> None:
    for _ in range(steps):
        both.propose([ask(row)])
        row.output += tokens
        both.observe([Observed(row, row.committed - len(tokens), None)])


def test_a_second_that_delivers_little_is_asked_less() -> None:
    first, second = Scripted("fair", [5, 6, 7, 8], 0.4), head()
    both, row = FirstThen(first, second), make_row([1], [9])
    learn(both, row, [99], 60)
    assert 0 < len(second.asked) < 60, "its first tokens never came"
    steady = head()
    both, row = FirstThen(Scripted("fair", [5, 6, 7, 8], 0.4), steady), make_row([1], [9])
    learn(both, row, [1, 2, 3, 4, 50], 60)
    assert len(steady.asked) == 60


def test_greedy_and_sampled_rows_are_counted_apart() -> None:
    second = head()
    both = FirstThen(Scripted("fair", [5, 6, 7, 8], 0.4), second)
    learn(both, make_row([1], [9], temperature=0.0), [99], 60)
    asked = len(second.asked)
    both.propose([ask(make_row([1], [9], 1, temperature=1.0))])
    assert len(second.asked) == asked + 1


def test_a_run_starts_with_both_afresh_and_without_what_the_second_delivered() -> None:
    first, second = Scripted("fair", [5, 6, 7, 8], 0.4), head()
    both = FirstThen(first, second)
    learn(both, make_row([1], [9]), [99], 60)
    asked = len(second.asked)
    both.propose([ask(make_row([1], [9], 1))])
    assert len(second.asked) == asked
    both.begin()
    assert (first.begun, second.begun) == (1, 1)
    both.propose([ask(make_row([1], [9], 2))])
    assert len(second.asked) == asked + 1


def test_observations_and_partings_reach_both() -> None:
    first, second = Scripted("first", [], 0.5), head()
    both, row = FirstThen(first, second), make_row([1], [9])
    both.propose([ask(row)])
    row.output.append(3)
    both.forget(row)
    both.forget(row)
    item = Observed(make_row([1], [2]), 0, None)
    both.observe([item])
    assert first.seen == second.seen == [item]
    assert first.forgotten == second.forgotten == [row, row]


def test_nothing_is_kept_of_a_row_that_left_where_it_had_drafted() -> None:
    first, second, row = Scripted("first", [], 0.5), head(), make_row([1], [9])
    both = FirstThen(first, second)
    known = sys.getrefcount(row)
    both.propose([ask(row)])
    both.forget(row)
    for each in (first, second):
        each.asked.clear()
        each.forgotten.clear()
    assert sys.getrefcount(row) == known


def test_faults_that_the_second_counts_itself_are_told() -> None:
    second = head()
    both = FirstThen(SuffixDrafter(), second)
    assert both.faults == 0
    second.faults = 3
    assert both.faults == 3
