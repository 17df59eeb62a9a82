"""A head drafter proposes what a whole recomputation of every row from true features would."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft.base import Observed, TreeShape
from specbatch.draft.head_runner import torch_head
from specbatch.tree import TokenTree
from tests.draft.head_world import (
    CHAIN,
    EMBEDDING,
    FORMS,
    PAGE,
    RUNNERS,
    World,
    as_paths,
    compiled,
    prompt,
    stream,
    true_features,
)
from tests.draft.heads_in_hand import CONFIG, TARGET, VOCABULARY, random_head


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("kind", list(RUNNERS))
def test_equals_recomputation_while_a_row_accepts_tokens(kind: str, form: str) -> None:
    world = World(RUNNERS[kind](FORMS[form]))
    row = world.start(prompt(7))
    world.prefill(row)
    world.check((row, CHAIN))
    for accepted in ([1], [2, 3, 4], [9, 8], [7, 7, 7, 7]):
        world.compute((row, len(accepted), accepted))
        world.check((row, CHAIN))
        world.check((row, TreeShape(3, 3, 8)))  # asking twice changes nothing


def test_rows_of_different_shapes_and_temperatures_draft_in_the_same_passes() -> None:
    world = World(compiled(CONFIG))
    rows = [world.start(prompt(3 + 5 * i, i), temperature) for i, temperature in enumerate((0.0, 1.0, 0.5))]
    for row in rows:
        world.prefill(row, chunk=6)
    shapes = [TreeShape(5, 1, 5), TreeShape(3, 4, 9), TreeShape(2, 3, 50)]
    world.check(*zip(rows, shapes, strict=True))
    drafts = world.propose(*zip(rows, shapes, strict=True))
    assert [draft.passes for draft in drafts] == [5, 3, 2]
    together = [as_paths(draft.tree) for draft in drafts]
    alone = [as_paths(world.propose(pair)[0].tree) for pair in zip(rows, shapes, strict=True)]
    assert together == alone  # to the bit


def test_chains_of_different_lengths_equal_chains_drafted_alone() -> None:
    world = World(compiled(CONFIG))
    rows = [
        world.start(prompt(4 + 3 * i, i), temperature) for i, temperature in enumerate((0.0, 1.0, 0.0, 0.6))
    ]
    for row in rows:
        world.prefill(row)
    pairs = list(zip(rows, [TreeShape(n, 1, n) for n in (2, 7, 1, 4)], strict=True))
    world.check(*pairs)
    drafts = world.propose(*pairs)
    assert [draft.passes for draft in drafts] == [2, 7, 1, 4]
    alone = [world.propose(pair)[0] for pair in pairs]
    assert [draft.tree for draft in drafts] == [draft.tree for draft in alone]  # to the bit
    assert [draft.flops for draft in drafts] == [draft.flops for draft in alone]


@pytest.mark.parametrize("kind", list(RUNNERS))
def test_a_chain_ends_where_it_has_become_unlikely_whoever_drafts_beside_it(kind: str) -> None:
    world = World(RUNNERS[kind](CONFIG))
    rows = [world.start(prompt(4 + 3 * i, i)) for i in range(3)]
    for row in rows:
        world.prefill(row)
    whole = [draft.tree for draft in world.propose(*((row, TreeShape(6, 1, 6)) for row in rows))]
    paths = [np.exp(tree.path_log_probs[1:]).tolist() for tree in whole]
    for least in (0.5 * (paths[0][1] + paths[0][2]), 0.5 * (paths[1][0] + paths[1][1]), 1.0, 1e-300):
        wanted = [next((d for d, f in enumerate(path, 1) if f < least), 6) for path in paths]
        shape = TreeShape(6, 1, 6, least=least)
        drafts = world.propose(*((row, shape) for row in rows))
        for row, tree, draft, depth in zip(rows, whole, drafts, wanted, strict=True):
            (alone,) = world.propose((row, shape))
            assert (alone.passes, alone.discarded) == (depth, 0)
            assert draft.passes == max(wanted), "together as deep as the deepest"
            assert draft.tree.size + draft.discarded == max(wanted)
            for found in (draft.tree, alone.tree):
                assert found.tokens.tolist() == tree.first(depth).tokens.tolist()
                np.testing.assert_allclose(found.log_probs, tree.first(depth).log_probs, rtol=1e-4)
                assert kind == "torch" or found == tree.first(depth), "to the bit"


def test_few_scratch_pages_split_the_batch_and_change_nothing() -> None:
    roomy, tight = World(compiled(CONFIG)), World(compiled(CONFIG), scratch_pages=4)
    found = []
    for world in (roomy, tight):
        rows = [world.start(prompt(6, i)) for i in range(5)]
        for row in rows:
            world.prefill(row)
        found.append([as_paths(d.tree) for d in world.propose(*((row, TreeShape(3, 4, 12)) for row in rows))])
    assert found[0] == found[1]


def test_a_tree_that_exceeds_all_scratch_pages_is_drafted_as_deep_as_they_reach() -> None:
    world = World(compiled(CONFIG), scratch_pages=2)
    row = world.start(prompt(6))
    world.prefill(row)
    (draft,) = world.propose((row, TreeShape(40, 2, 80)))
    assert int(draft.tree.depths.max()) == 1 + 2 * PAGE // 2
    draft.tree.check()


def test_candidates_that_cannot_be_selected_are_counted_and_left_out() -> None:
    world = World(compiled(CONFIG))
    row = world.start(prompt(6))
    world.prefill(row)
    (draft,) = world.propose((row, TreeShape(3, 4, 6)))
    assert draft.tree.size == 6
    assert draft.discarded > 0
    assert (draft.tree.size + draft.discarded) % 4 == 0  # every expanded node produced four
    assert world.propose((row, CHAIN))[0].discarded == 0


def test_levels_end_where_the_positions_do() -> None:
    world = World(compiled(CONFIG))
    world.wake()
    row = world.start(prompt(TARGET.max_context - 2))
    world.prefill(row)
    (draft,) = world.propose((row, TreeShape(9, 1, 9)))
    assert draft.tree.size == 2
    world.compute((row, 1, [3]))
    world.check((row, TreeShape(1, 1, 1)))


def test_rows_on_shared_pages_use_what_the_first_row_stored() -> None:
    world = World(compiled(CONFIG))
    common = prompt(14)
    first = world.start([*common, 3])
    world.prefill(first, chunk=5)
    world.check((first, CHAIN))
    second = world.start([*common, 9, 11])
    assert second.cached == 3 * PAGE
    world.prefill(second)
    world.check((second, CHAIN), (first, CHAIN))


def test_a_preempted_row_starts_again() -> None:
    world = World(compiled(CONFIG))
    row, other = world.start(prompt(9)), world.start(prompt(9, 1))
    world.prefill(row)
    world.prefill(other)
    world.compute((row, 3, [4, 5, 6]), (other, 1, [4]))
    world.preempt(row)
    assert world.propose((row, CHAIN))[0].tree.size == 0
    world.compute((other, 2, [1, 2]))
    world.admit(row)
    world.compute((row, row.committed - row.cached, [8]))
    world.check((other, CHAIN), (row, CHAIN))


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_equals_recomputation_under_any_schedule(data: st.DataObject) -> None:
    """Rows come, share prefixes, accept any number of tokens, draft or sit out, and are preempted."""
    world = World(compiled(CONFIG), scratch_pages=data.draw(st.integers(3, 20)))
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    for length in lengths:
        row = world.start(prompt(length), data.draw(st.sampled_from([0.0, 0.8])))
        world.prefill(row, chunk=data.draw(st.integers(1, 9)))
    for _ in range(data.draw(st.integers(1, 5))):
        work = []
        for row in world.rows:
            if data.draw(st.integers(0, 5)) == 0:
                world.preempt(row)
                world.admit(row)
            if data.draw(st.booleans()):
                new = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
                work.append((row, row.committed - row.cached + len(new) - 1, new))
            elif row.cached < row.committed - 1:
                work.append((row, row.committed - 1 - row.cached, []))
        world.compute(*work)
        shapes = data.draw(
            st.lists(
                st.sampled_from([CHAIN, TreeShape(2, 1, 2), TreeShape(2, 2, 6), TreeShape(3, 2, 3)]),
                min_size=len(world.rows),
                max_size=len(world.rows),
            )
        )
        asked = [
            (row, shape)
            for row, shape in zip(world.rows, shapes, strict=True)
            if data.draw(st.booleans()) and row.cached == row.committed - 1
        ]
        world.check(*asked)


def test_a_run_starts_without_the_features_of_another_one() -> None:
    world = World(compiled(CONFIG))
    row = world.start(prompt(14))
    world.prefill(row)
    assert world.propose((row, CHAIN))[0].tree.size
    world.drafter.begin()
    assert not world.propose((row, CHAIN))[0].tree.size
    on_its_pages = world.start(prompt(13))
    assert on_its_pages.cached == 3 * PAGE
    on_its_pages.output.append(4)
    on_its_pages.cached = on_its_pages.committed - 1
    world.drafter.observe([Observed(on_its_pages, 3 * PAGE, np.ones((1, 3, 32), dtype=np.float32))])
    assert (world.drafter._memory.pending(on_its_pages)[2][0] == 0.0).all()


def test_a_row_never_observed_gets_no_draft() -> None:
    world = World(compiled(CONFIG))
    row = world.start(prompt(5))
    (draft,) = world.propose((row, CHAIN))
    assert draft.tree == TokenTree.root(row.token(4))
    assert draft.passes == 0
    world.drafter.forget(row)


@pytest.mark.parametrize("kind", list(RUNNERS))
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_numbers_that_are_none_cost_one_row_its_draft_and_heal(kind: str, poison: float) -> None:
    world = World(RUNNERS[kind](CONFIG))
    sick, well = world.start(prompt(6)), world.start(prompt(6, 1))
    world.prefill(sick)
    world.prefill(well)
    features = np.full((1, 3, 32), poison, dtype=np.float32)
    sick.output.append(4)
    sick.cached += 1
    world.reach(sick)
    world.drafter.observe([Observed(sick, sick.cached - 1, features)])
    drafts = world.propose((sick, CHAIN), (well, CHAIN))
    assert drafts[0].tree.size == 0
    assert world.drafter.faults == 1
    text = world.text(well)
    expected = world.spelt_out.tree(text, true_features(text[:-1]), CHAIN, 0.0, stream(well))
    assert as_paths(drafts[1].tree) == pytest.approx(expected, abs=2e-4)
    assert world.propose((sick, CHAIN))[0].tree.size == 0
    world.compute((sick, 2, [1, 2]))
    (draft,) = world.propose((sick, CHAIN))
    assert draft.tree.size == 4
    assert world.drafter.faults == 1


def test_a_head_of_nan_proposes_nothing_and_says_so() -> None:
    weights = random_head()
    broken = replace(weights.tensors["norm.weight"], data=torch.full((32,), math.nan))
    weights = replace(weights, tensors={**weights.tensors, "norm.weight": broken})
    world = World(torch_head(weights, TARGET, EMBEDDING))
    row = world.start(prompt(8))
    world.prefill(row)
    for step in range(3):
        (draft,) = world.propose((row, TreeShape(2, 2, 6)))
        assert draft.tree.size == 0
        assert world.drafter.faults == step + 1
        world.compute((row, 1, [3]))


def test_operations_follow_the_formula() -> None:
    world = World(compiled(CONFIG))
    row = world.start(prompt(8))
    world.prefill(row)  # observed at once: seven of nine entries are computed before anyone asks
    (draft,) = world.propose((row, TreeShape(2, 1, 2)))
    d, pair, inner, features, vocabulary, heads = 32, 4 * 8 + 2 * 2 * 8, 64, 3, 24, 32
    entry = 2 * (2 * d * pair + heads * d + 3 * d * inner)
    text = 9 * (entry + 2 * features * d * d) + 4 * heads * sum(range(1, 10))
    node = entry + 4 * heads * 10
    assert draft.flops == text + node + 2 * 2 * d * vocabulary
    assert draft.passes == 3
    assert world.propose((row, TreeShape(1, 1, 1)))[0].passes == 1
