"""Calibration: learns what a drafter's probabilities are worth, from reached candidates alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.policy.calibration import LAG, Calibration
from specbatch.policy.evidence import Trust
from specbatch.policy.forest import Drafts, Forest
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree
from tests.trees import trees

RIGHT, WRONG = 1, 2


def row(temperature: float = 0.0) -> Row:
    return Row(Prompt(0, "0" * 32, None, "t", (1, 2), SamplingParams(temperature=temperature)))


def drafts(some: Sequence[TokenTree], rows: Sequence[Row], source: int = 0) -> Drafts:
    return Drafts(some, rows, np.full(sum(map(len, some)), source))


def chain(probabilities: Sequence[float]) -> TokenTree:
    return TokenTree.chain(0, [RIGHT] * len(probabilities), np.log(probabilities).tolist())


def teach(
    calibration: Calibration, rows: Sequence[Row], truth: Callable[[float], float], steps: int, seed: int = 0
) -> None:
    """Chains of two tokens whose probabilities are drawn at random; the truth decides each."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        said = rng.uniform(0.02, 0.98, (len(rows), 2))
        real = rng.random((len(rows), 2)) < np.vectorize(truth)(said)
        chosen = [[RIGHT, RIGHT if b else WRONG] if a else [WRONG] for a, b in real.tolist()]
        calibration.learn(drafts([chain(pair) for pair in said], rows), chosen)


def estimate(calibration: Calibration, some: Row, probability: float, depth: int = 1) -> float:
    tree = chain([0.5] * (depth - 1) + [probability])
    return float(calibration.conditional(drafts([tree], [some]))[-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=5))
def test_forest_agrees_with_its_trees(some: list[TokenTree]) -> None:
    forest = Forest.of(some)
    for i, tree in enumerate(some):
        here = slice(forest.starts[i], forest.starts[i + 1])
        assert (forest.owners[here] == i).all()
        assert (forest.tokens[here] == tree.tokens).all()
        assert (forest.depths[here] == tree.depths).all()
        assert (forest.parents[here][1:] - forest.starts[i] == tree.parents[1:]).all()
        np.testing.assert_allclose(forest.paths(forest.reported)[here], np.exp(tree.path_log_probs))
        for node in range(len(tree)):
            children = tree.children(node)
            ranked = sorted(children.tolist(), key=lambda child: (-np.exp(tree.log_probs[child]), child))
            assert [forest.ranks[forest.starts[i] + child] for child in ranked] == list(range(len(ranked)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(trees(), st.lists(st.integers(0, 4), max_size=5)), min_size=1, max_size=4))
def test_reached_candidates_are_the_children_of_accepted_nodes(
    some: list[tuple[TokenTree, list[int]]],
) -> None:
    forest = Forest.of([tree for tree, _ in some])
    nodes, accepted = forest.reached([tokens for _, tokens in some])
    expected: dict[int, bool] = {}
    for start, (tree, tokens) in zip(forest.starts.tolist(), some, strict=False):
        node: int | None = 0
        for token in tokens:
            if node is None:
                break
            expected |= {start + int(child): tree.tokens[child] == token for child in tree.children(node)}
            node = tree.child(node, token)
    assert dict(zip(nodes.tolist(), accepted.tolist(), strict=True)) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 3))
def test_probabilities_of_paths_are_probabilities(some: list[TokenTree], source: int) -> None:
    calibration = Calibration()
    rows = [row() for _ in some]
    teach(calibration, rows, lambda p: 1.0, 5)
    candidates = drafts(some, rows, source)
    f, forest = calibration.paths(candidates), candidates.forest
    below = forest.depths > 0
    assert (f[forest.starts[:-1]] == 1.0).all()
    assert (f[below] <= f[forest.parents[below]]).all()
    sums = np.bincount(forest.parents[below], f[below], minlength=len(forest))
    assert (sums <= f + 1e-12).all()
    assert (f >= 0.0).all()


def test_before_any_evidence_nothing_is_believed_in_full() -> None:
    for probability in (0.05, 0.3, 0.6, 0.9, 0.99):
        assert 0.5 * probability < estimate(Calibration(), row(), probability) < 0.85 * probability


@pytest.mark.parametrize("truth", [lambda p: p * p, lambda p: p**0.4, lambda p: 0.3])
def test_a_drafter_that_is_wrong_about_itself_is_seen_through(truth: Callable[[float], float]) -> None:
    calibration = Calibration("suffix")
    some = [row() for _ in range(8)]
    teach(calibration, some, truth, 300)
    for probability in (0.1, 0.3, 0.5, 0.7, 0.9):
        for depth in (1, 2):
            assert estimate(calibration, row(), probability, depth) == pytest.approx(
                truth(probability), abs=0.12
            )
    overall = calibration.report()["overall"]
    assert isinstance(overall, dict)
    assert overall["ece"] < 0.05 < overall["ece_reported"]
    assert overall["brier"] < overall["brier_reported"]


def test_greedy_and_sampled_rows_and_sources_are_told_apart() -> None:
    calibration = Calibration("suffix+head")
    greedy, sampled = row(), row(temperature=0.8)
    for _ in range(100):
        for some, source, chosen in ((greedy, 1, RIGHT), (sampled, 1, WRONG), (greedy, 2, WRONG)):
            calibration.learn(drafts([chain([0.5])], [some], source), [[chosen]])
    fresh = {0.0: row(), 0.8: row(temperature=0.8)}
    found = {
        (temperature, source): float(calibration.conditional(drafts([chain([0.5])], [some], source))[1])
        for temperature, some in fresh.items()
        for source in (1, 2)
    }
    assert found[0.0, 1] > 0.85
    assert found[0.8, 1] < 0.15
    assert found[0.0, 2] < 0.15
    assert found[0.8, 2] == pytest.approx(0.35, abs=0.05)
    by_depth = calibration.report()["by_depth"]
    assert isinstance(by_depth, list)
    assert [entry["drafter"] for entry in by_depth] == ["suffix", "head"]
    assert [entry["candidates"] for entry in by_depth] == [200, 100]


def test_what_was_not_reached_is_no_evidence() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.learn(drafts([chain([0.5, 0.5, 0.5])], [row()]), [[WRONG]])
        calibration.learn(drafts([chain([0.5, 0.5, 0.5])], [row()]), [[]])
    by_depth = calibration.report()["by_depth"]
    assert isinstance(by_depth, list)
    assert [(entry["depth"], entry["candidates"]) for entry in by_depth] == [(1, 50)]


def test_a_row_that_goes_bad_is_noticed_within_twenty_steps() -> None:
    """The drafter goes on saying 0.9; one row in flight, one candidate decided a step."""
    calibration, some = Calibration(), row()
    for _ in range(200):
        calibration.learn(drafts([chain([0.9])], [some]), [[RIGHT]])
    assert estimate(calibration, some, 0.9) > 0.9
    for _ in range(20):
        calibration.learn(drafts([chain([0.9])], [some]), [[WRONG]])
    assert estimate(calibration, some, 0.9) < 0.15
    assert estimate(calibration, row(), 0.9) < 0.9, "others are warned"
    for _ in range(20):
        calibration.learn(drafts([chain([0.9])], [some]), [[RIGHT]])
    assert estimate(calibration, some, 0.9) > 0.7


def test_a_drafter_that_goes_bad_for_all_rows_is_noticed_within_a_few_steps() -> None:
    calibration, some = Calibration(), [row() for _ in range(32)]
    for _ in range(50):
        calibration.learn(drafts([chain([0.9])] * 32, some), [[RIGHT]] * 32)
    for _ in range(8):
        calibration.learn(drafts([chain([0.9])] * 32, some), [[WRONG]] * 32)
    assert estimate(calibration, some[0], 0.9) < 0.1
    assert estimate(calibration, row(), 0.9) < 0.3


def test_a_bad_row_among_good_ones_costs_only_itself() -> None:
    calibration, good, bad = Calibration(), [row() for _ in range(15)], row()
    for _ in range(40):
        calibration.learn(drafts([chain([0.7])] * 16, [*good, bad]), [[RIGHT]] * 15 + [[WRONG]])
    assert estimate(calibration, bad, 0.7) < 0.4
    assert estimate(calibration, good[0], 0.7) > 0.85
    assert estimate(calibration, row(), 0.7) > 0.8


def test_rows_that_left_are_forgotten_and_leave_no_trace() -> None:
    calibration = Calibration()
    for _ in range(200):
        some = row()
        calibration.learn(drafts([chain([0.9])], [some]), [[WRONG]])
        calibration.forget(some)
        calibration.forget(some)
    fresh, other = row(), row()
    assert estimate(calibration, fresh, 0.9) == estimate(calibration, other, 0.9)


def test_nothing_is_random() -> None:
    one, other = Calibration(), Calibration()
    for calibration in (one, other):
        teach(calibration, [row() for _ in range(4)], lambda p: p, 50)
    assert one.report() == other.report()
    assert estimate(one, row(), 0.4) == estimate(other, row(), 0.4)
    assert json.loads(json.dumps(one.report())) == one.report()


def test_there_is_room_for_any_number_of_rows() -> None:
    calibration, some = Calibration(), [row() for _ in range(200)]
    candidates = drafts([chain([0.5])] * 200, some)
    assert len(set(calibration.conditional(candidates)[1::2].tolist())) == 1
    for _ in range(LAG):
        calibration.learn(candidates, [[RIGHT]] * 200)
    assert calibration.conditional(candidates)[-1] > 0.8


def test_steps_learnt_from_together_teach_what_they_teach_one_by_one() -> None:
    """Recent candidates count as if each step had been learnt from by itself."""
    together, one_by_one = (Trust(6, window=12.0, doubt=1.0) for _ in range(2))
    random = np.random.default_rng(0)
    steps = np.sort(random.integers(0, 5, 40))
    records, hits = random.integers(0, 6, 40), random.integers(0, 2, 40).astype(np.float64)
    expected = random.uniform(0.1, 0.9, 40)
    together.add(steps, records, (expected, hits))
    for step in range(5):
        here = steps == step
        one_by_one.add(np.zeros(here.sum(), dtype=np.int64), records[here], (expected[here], hits[here]))
    np.testing.assert_allclose(together.shifts(), one_by_one.shifts())
    assert np.unique(together.shifts()).size == 6
