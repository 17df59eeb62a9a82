"""Laws of token trees: build, merge, keep, best, depths, masks, paths; and what ``check`` refuses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.tree import TokenTree
from tests.trees import ROOT, climb, spelt, trees

fast = settings(max_examples=100, deadline=None)


@fast
@given(trees())
def test_every_view_of_a_tree_follows_from_its_parents(tree: TokenTree) -> None:
    tree.check()
    parents = tree.parents.tolist()
    mask, depths, totals = tree.ancestor_mask(), tree.depths, tree.path_log_probs
    for node in range(len(tree)):
        upwards = climb(parents, node)
        below_root = upwards[-2::-1]
        assert tree.ancestors(node) == tree.lineages[node] == below_root
        assert depths[node] == len(below_root)
        assert tree.path(node) == tuple(tree.tokens[below_root].tolist())
        assert sorted(upwards) == np.flatnonzero(mask[node]).tolist()
        assert totals[node] == pytest.approx(sum(tree.log_probs[n] for n in below_root))
        assert tree.children(node).tolist() == [n for n in range(len(tree)) if parents[n] == node]
        for token in range(6):
            under = [n for n in tree.children(node).tolist() if tree.tokens[n] == token]
            assert tree.child(node, token) == (under[0] if under else None)
    assert tree.size == len(tree) - 1
    assert [str(array.dtype) for array in (depths, totals, mask)] == ["int32", "float64", "bool"]


@fast
@given(trees())
def test_no_node_is_likelier_than_its_parent(tree: TokenTree) -> None:
    totals = tree.path_log_probs
    assert (totals[1:] <= totals[tree.parents[1:]]).all()


@fast
@given(st.lists(st.integers(0, 9), max_size=8))
def test_a_chain_is_one_path(tokens: list[int]) -> None:
    tree = TokenTree.chain(ROOT, tokens, [-0.5] * len(tokens))
    tree.check()
    assert tree.path(len(tree) - 1) == tuple(tokens)
    assert tree.depths.tolist() == list(range(len(tokens) + 1))
    assert TokenTree.root(ROOT) == TokenTree.chain(ROOT, [], [])


@fast
@given(trees(), trees())
def test_a_merge_has_the_paths_of_both_and_the_larger_probability(a: TokenTree, b: TokenTree) -> None:
    union = TokenTree.merge(a, b)
    union.check()
    mine, theirs = spelt(a), spelt(b)
    assert spelt(union) == {
        path: max(mine.get(path, -math.inf), theirs.get(path, -math.inf))
        for path in mine.keys() | theirs.keys()
    }
    assert union.keep(np.arange(len(a))).parents.tolist() == a.parents.tolist()
    assert spelt(TokenTree.merge(b, a)) == spelt(union)
    assert TokenTree.merge(a, a) == a


def test_trees_of_different_rows_do_not_merge() -> None:
    with pytest.raises(ValueError, match="different rows"):
        TokenTree.merge(TokenTree.root(1), TokenTree.root(2))


@fast
@given(trees(), st.data())
def test_keep_takes_closed_sets_in_order_and_refuses_others(tree: TokenTree, data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, len(tree) - 1), unique=True))
    closed = {*nodes, 0}
    if any(int(tree.parents[n]) not in closed for n in nodes if n):
        with pytest.raises(ValueError, match="together with their parents"):
            tree.keep(nodes)
        return
    kept = tree.keep(nodes)
    kept.check()
    order = sorted(closed)
    assert kept.tokens.tolist() == tree.tokens[order].tolist()
    assert [kept.path(i) for i in range(len(kept))] == [tree.path(n) for n in order]
    assert kept.log_probs.tolist() == tree.log_probs[order].tolist()


@fast
@given(trees(), st.integers(0, 16))
def test_first_keeps_the_beginning(tree: TokenTree, count: int) -> None:
    assert tree.first(count) == tree.keep(list(range(1, min(count, tree.size) + 1)))


@fast
@given(trees(), st.integers(0, 16))
def test_best_is_the_likeliest_closed_set_ties_by_index(tree: TokenTree, count: int) -> None:
    best = tree.best(count)
    best.check()
    totals = tree.path_log_probs
    order = sorted(range(1, len(tree)), key=lambda n: (-totals[n], n))[:count]
    assert best == tree.keep(order)
    assert best.size == min(count, tree.size)


@settings(max_examples=30, deadline=None)
@given(trees(max_size=7), st.integers(1, 4))
def test_no_other_closed_set_of_that_size_is_likelier(tree: TokenTree, count: int) -> None:
    def mass(nodes: tuple[int, ...]) -> float:
        return float(np.exp(tree.path_log_probs[list(nodes)]).sum())

    size = min(count, tree.size)
    chosen = tree.best(count)
    found = float(np.exp(chosen.path_log_probs[1:]).sum())
    for nodes in itertools.combinations(range(1, len(tree)), size):
        assert mass(nodes) <= found + 1e-12


@pytest.mark.parametrize(
    ("tokens", "parents", "log_probs", "reason"),
    [
        ([3, 1], [-1], [0.0, -1.0], "as many"),
        ([], [], [], "as many"),
        ([3, 1], [0, 0], [0.0, -1.0], "before its children"),
        ([3, 1], [-1, -1], [0.0, -1.0], "before its children"),
        ([3, 1, 2], [-1, 2, 0], [0.0, -1.0, -1.0], "before its children"),
        ([3, 1], [-1, 1], [0.0, -1.0], "before its children"),
        ([3, 1], [-1, 0], [0.0, 0.1], "log probability"),
        ([3, 1], [-1, 0], [0.0, math.nan], "log probability"),
        ([3, 1], [-1, 0], [-1.0, -1.0], "log probability"),
        ([3, -1], [-1, 0], [0.0, -1.0], "negative"),
        ([3, 1, 1], [-1, 0, 0], [0.0, -1.0, -2.0], "same token"),
    ],
)
def test_check_refuses_what_is_no_tree(
    tokens: list[int], parents: list[int], log_probs: list[float], reason: str
) -> None:
    tree = TokenTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int32), np.array(log_probs))
    with pytest.raises(ValueError, match=reason):
        tree.check()


@pytest.mark.parametrize("field", ["tokens", "parents"])
def test_check_refuses_other_types_and_shapes(field: str) -> None:
    tree = TokenTree.chain(ROOT, [1], [-1.0])
    with pytest.raises(ValueError, match="integers"):
        replace(tree, **{field: getattr(tree, field).astype(np.float64)}).check()
    with pytest.raises(ValueError, match="as many"):
        replace(tree, **{field: getattr(tree, field)[:, None]}).check()
