"""For few rows policies count with plain numbers, for many with arrays: both say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft.base import TreeShape
from specbatch.policy.calibration import SOURCES, Calibration
from specbatch.policy.candidates import Candidates, CandidateTable
from specbatch.policy.costed import bounded_paths, bounded_paths_arrays, bounded_paths_plain
from specbatch.policy.forest import Drafts, Forest, plain_nodes
from specbatch.policy.selection import select, select_arrays, select_plain
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree
from tests.trees import trees

forests = st.lists(trees(), min_size=1, max_size=6)


def row(temperature: float) -> Row:
    return Row(Prompt(0, "0" * 32, None, "t", (1, 2), SamplingParams(temperature=temperature)))


def drafts(some: Sequence[TokenTree], rows: Sequence[Row], seed: int) -> Drafts:
    nodes = sum(map(len, some))
    return Drafts(some, rows, np.random.default_rng(seed).integers(0, SOURCES, nodes))


@settings(max_examples=100, deadline=None)
@given(trees())
def test_nodes_of_a_tree(tree: TokenTree) -> None:
    forest, nodes = Forest.of([tree]), plain_nodes(tree)
    assert [node.parent for node in nodes] == forest.parents[1:].tolist()
    assert [node.depth for node in nodes] == forest.depths[1:].tolist()
    assert [node.rank for node in nodes] == forest.ranks[1:].tolist()
    assert [node.reported for node in nodes] == forest.reported[1:].tolist()


@settings(max_examples=100, deadline=None)
@given(forests, st.integers(0, 2**31))
def test_calibrated_probabilities(some: list[TokenTree], seed: int) -> None:
    rows = [row(i % 2) for i in range(len(some))]
    calibration = Calibration("suffix+head")
    rng = np.random.default_rng(seed)
    for step in range(12):  # evidence, so that no layer is what it was in the beginning
        chosen = [tree.tokens[1:3].tolist() if rng.random() < 0.6 else [9] for tree in some]
        calibration.learn(drafts(some, rows, step), chosen)
    new = drafts(some, rows, seed)
    below = new.forest.depths > 0
    plain, arrays = calibration.conditional_plain(new), calibration.conditional_arrays(new)
    np.testing.assert_allclose(plain[below], arrays[below], rtol=1e-9)
    np.testing.assert_allclose(calibration.conditional(new)[below], arrays[below], rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    forests,
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8), st.integers(0, 7)), min_size=6, max_size=6),
)
def test_paths_within_bounds(some: list[TokenTree], bounds: list[tuple[int, int, int]]) -> None:
    shapes = [TreeShape(levels, 1, nodes, free_levels=free) for levels, nodes, free in bounds[: len(some)]]
    new = drafts(some, [row(0.0)] * len(some), 0)
    # Binary fractions: products are exact, and equal ones stay equal.
    conditional = np.random.default_rng(len(new.sources)).choice([0.25, 0.5, 0.75, 1.0], len(new.sources))
    arrays = bounded_paths_arrays(new, conditional, shapes)
    assert bounded_paths_plain(new, conditional, shapes).tolist() == arrays.tolist()
    assert bounded_paths(new, conditional, shapes).tolist() == arrays.tolist()


def test_selections_without_needs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(1000):
        rows, width = [], int(rng.integers(1, 5))
        for _ in range(width):
            f = np.sort(rng.choice(np.arange(9) / 8.0, int(rng.integers(0, 6))))[::-1]
            weight, n_max = float(rng.choice([1.0, 2.0])), int(rng.integers(0, 7))
            rows.append(Candidates(np.array([1.0, *rng.permutation(f)]), n_max=n_max, weight=weight))
        step_s = 1.0 + np.cumsum(rng.choice([0.0, 0.25, 1.0], int(rng.integers(1, 12))))
        price = step_s + rng.choice([0.0, 2.0]) if rng.random() < 0.5 else None
        options = (step_s, float(rng.choice([0.0, 0.5])), float(rng.choice([0.0, 0.25])), price)
        wanted = select_arrays(rows, *options)
        for given_rows in (rows, CandidateTable.of(rows)):
            for found in (select_plain(given_rows, *options), select(given_rows, *options)):
                for field in fields(wanted):
                    one, other = getattr(found, field.name), getattr(wanted, field.name)
                    assert np.array_equal(one, other), field.name


def test_many_rows_are_selected_for_with_arrays() -> None:
    rows = [Candidates(np.array([1.0, 0.75, 0.5]))] * 40
    step_s = np.linspace(1.0, 1.1, 81)
    assert select(rows, step_s).total == select_plain(rows, step_s).total == 80
