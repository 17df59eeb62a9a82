"""The model drafter: its trees say what the draft model says, wherever its keys and values lie."""

from __future__ import annotations

import copy

import pytest

from specbatch.draft.base import DraftRequest, TreeShape
from specbatch.draft.model import ModelDrafter
from specbatch.randomness import gumbel
from tests.draft.model_world import (
    KERNELS,
    PAGE,
    SCRATCH,
    TREE,
    Tiny,
    make_tiny,
    placed,
    propose,
    text_of,
)
from tests.draft.rows_in_hand import ask, make_row


@pytest.fixture(scope="module", params=KERNELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny", request.param)


@pytest.mark.parametrize("length", [2, 4, 5, 8, 9, 23])
def test_a_chain_is_how_the_model_goes_on(tiny: Tiny, length: int) -> None:
    drafter, _ = tiny.drafter()
    tokens = text_of(length)
    tree = propose(drafter, placed(tokens, [9, 3, 7, 30, 12, 5]))
    assert list(tree.path(4)) == tiny.greedy(tokens, 4)


def test_rows_without_a_page_for_their_last_tokens_are_drafted_too(tiny: Tiny) -> None:
    tokens = text_of(18)
    for pages in ([9, 3, 7, 30], [9, 3, 7], []):
        drafter, _ = tiny.drafter()
        for _ in range(2):
            assert list(propose(drafter, placed(tokens, pages)).path(4)) == tiny.greedy(tokens, 4)


def test_probabilities_of_a_tree_are_those_of_the_model_along_its_paths(tiny: Tiny) -> None:
    drafter, _ = tiny.drafter()
    tokens = text_of(14)
    tree = propose(drafter, placed(tokens, [4, 8, 2, 6]), TREE)
    assert tree.size == 3 + 9 + 9
    for node in range(1, len(tree)):
        path = tree.path(node)
        expected = tiny.logits([*tokens, *path[:-1]]).log_softmax(-1)[path[-1]]
        assert abs(float(expected) - tree.log_probs[node]) < 1e-4
    best = tiny.logits(tokens).topk(3).indices.tolist()
    assert [int(tree.tokens[child]) for child in tree.children(0)] == best


def test_committed_tokens_are_caught_up_with_over_many_steps(tiny: Tiny) -> None:
    drafter, executor = tiny.drafter()
    tokens = text_of(40)
    row = placed(tokens[:3], [5])
    for end in (4, 5, 9, 10, 11, 12, 19, 40):
        row.output = tokens[2:end]
        row.pages = [5, 20, 6, 21, 7, 22, 8, 23, 9, 24][: -(-end // PAGE)]
        before = len(executor.steps)
        assert list(propose(drafter, row).path(4)) == tiny.greedy(tokens[:end], 4)
        assert len(executor.steps) == before + 4, "one pass for each level"
    assert sum(step.num_tokens for step in executor.steps) == 40 + 8 * 3, "nothing is computed twice"


def test_long_prompts_are_caught_up_with_before_the_tree_in_bounded_passes(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbatch.draft.model.MAX_TOKENS", 16)
    monkeypatch.setattr("specbatch.draft.model._AT_ONCE", 8)
    drafter, executor = tiny.drafter()
    texts = [text_of(length, length) for length in (50, 7, 21)]
    pages = [list(range(1, 14)), [14, 15], list(range(16, 22))]
    rows = [placed(t, p, index=i) for i, (t, p) in enumerate(zip(texts, pages, strict=True))]
    drafts = drafter.propose([ask(row) for row in rows])
    assert [list(draft.tree.path(4)) for draft in drafts] == [tiny.greedy(text, 4) for text in texts]
    assert max(step.num_tokens for step in executor.steps) <= 16
    assert [draft.passes for draft in drafts] == [4 + 4, 4, 4 + 2]


def test_rows_drafted_together_get_what_they_get_alone(tiny: Tiny) -> None:
    texts = [text_of(length, length) for length in (5, 16, 9, 30)]
    pages = [[1, 2], [3, 4, 5, 6, 7], [8, 9, 10], list(range(11, 20))]
    for scratch in (SCRATCH, 5):  # all at once, or in several batches
        together, executor = tiny.drafter(scratch)
        rows = [placed(t, p, index=i) for i, (t, p) in enumerate(zip(texts, pages, strict=True))]
        trees = [draft.tree for draft in together.propose([ask(row, TREE) for row in rows])]
        assert len(executor.steps) == (3 if scratch == SCRATCH else 3 * 2)
        for row, tree in zip(rows, trees, strict=True):
            alone, _ = tiny.drafter()
            other = propose(alone, row, TREE)
            assert tree.tokens.tolist() == other.tokens.tolist()
            assert abs(tree.log_probs - other.log_probs).max() < 1e-5


@pytest.mark.parametrize(("scratch", "levels"), [(1, 2), (2, 3), (3, 4)])
def test_with_few_scratch_pages_trees_are_less_deep(tiny: Tiny, scratch: int, levels: int) -> None:
    drafter, _ = tiny.drafter(scratch)
    tree = propose(drafter, placed(text_of(8), [1, 2]), TreeShape(4, 3, 99))
    assert tree.depths.max() == levels


def test_a_sampled_row_gets_the_candidates_that_its_noise_favours(tiny: Tiny) -> None:
    tokens = text_of(10)
    for index in range(5):
        drafter, _ = tiny.drafter()
        row = placed(tokens, [1, 2, 3], index=index, temperature=0.7)
        request = ask(row, TreeShape(3, 1, 3))
        (draft,) = drafter.propose([request])
        for node in range(1, 4):
            path = draft.tree.path(node)
            log_probs = (tiny.logits([*tokens, *path[:-1]]) / 0.7).log_softmax(-1)
            likely = log_probs.topk(64).indices
            noise = gumbel(request.stream, row.committed + node - 1, likely)
            assert path[-1] == int(likely[(log_probs[likely] + noise).argmax()])
            assert abs(float(log_probs[path[-1]]) - draft.tree.log_probs[node]) < 1e-4


def test_temperatures_near_zero_are_drafted(tiny: Tiny) -> None:
    drafter, _ = tiny.drafter()
    tokens = text_of(10)
    row = placed(tokens, [1, 2, 3], temperature=1e-310)
    assert list(propose(drafter, row).path(4)) == tiny.greedy(tokens, 4)


def test_a_row_on_shared_pages_uses_what_another_stored(tiny: Tiny) -> None:
    drafter, executor = tiny.drafter()
    shared = text_of(12)
    first = placed([*shared, 40], [1, 2, 3, 4], index=0)
    propose(drafter, first)
    executor.steps.clear()
    tokens = [*shared, 50, 51]
    second = placed(tokens, [1, 2, 3, 7], index=1)
    assert list(propose(drafter, second).path(4)) == tiny.greedy(tokens, 4)
    assert executor.steps[0].num_tokens == 2


def test_a_run_starts_without_a_page_of_another_one(tiny: Tiny) -> None:
    drafter, executor = tiny.drafter()
    tokens = text_of(12)
    before = propose(drafter, placed(tokens, [1, 2, 3]))
    drafter.begin()
    executor.steps.clear()
    assert propose(drafter, placed(tokens, [1, 2, 3])) == before
    assert executor.steps[0].num_tokens == 12


def test_pages_that_others_overwrote_are_computed_again(tiny: Tiny) -> None:
    drafter, _ = tiny.drafter()
    tokens = text_of(12)
    first = placed(tokens, [1, 2, 3], index=0)
    propose(drafter, first)
    drafter.forget(first)  # preempted
    other = text_of(6, seed=9)
    propose(drafter, placed(other, [2, 1], index=1))  # all of page 2, half of page 1
    first.pages = [1, 2, 3]
    assert list(propose(drafter, first).path(4)) == tiny.greedy(tokens, 4)
    first.pages = [3, 1, 2]
    drafter.forget(first)
    assert list(propose(drafter, first).path(4)) == tiny.greedy(tokens, 4)


def test_tokens_that_the_target_does_not_have_are_not_proposed(tiny: Tiny) -> None:
    tokens = text_of(9)
    best = tiny.greedy(tokens, 1)[0]
    drafter, _ = tiny.drafter(vocab=best)
    tree = propose(drafter, placed(tokens, [1, 2, 3]), TREE)
    assert tree.tokens[1:].max() < best


def test_at_the_end_of_the_models_context_there_is_less_to_propose_and_then_nothing(tiny: Tiny) -> None:
    context = tiny.config.max_context
    pages = list(range(1, 20))
    sizes = []
    for length in range(context - 3, context + 2):
        drafter, _ = tiny.drafter()
        sizes.append(propose(drafter, placed(text_of(length), pages)).size)
    assert sizes == [4, 3, 2, 1, 0]


def test_proposing_changes_no_row_and_forgetting_strangers_is_fine(tiny: Tiny) -> None:
    drafter, _ = tiny.drafter()
    row = placed(text_of(9), [1, 2, 3])
    before = copy.deepcopy((row.output, row.pages, row.cached))
    first = propose(drafter, row, TREE)
    assert propose(drafter, row, TREE) == first
    assert (row.output, row.pages, row.cached) == before
    drafter.forget(make_row([1]))
    assert drafter.propose([]) == []


def test_passes_and_operations_are_charged(tiny: Tiny) -> None:
    drafter, _ = tiny.drafter()
    config = tiny.config
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = config.hidden_size * (2 * heads + 2 * kv_heads + 3 * config.intermediate_size)
    token, key = 2 * config.num_layers * weights, 4 * config.num_layers * heads
    logits = 2 * config.vocab_size * config.hidden_size
    row = placed(text_of(5), [1, 2])
    (draft,) = drafter.propose([ask(row, TreeShape(2, 3, 99))])
    assert draft.passes == 2
    assert draft.flops == 5 * token + (1 + 2 + 3 + 4 + 5) * key + logits + 3 * (token + 6 * key + logits)


def test_output_that_is_no_number_is_a_fault_and_no_draft(tiny: Tiny) -> None:
    drafter, executor = tiny.drafter()
    good, bad = placed(text_of(9), [1, 2, 3], index=0), placed(text_of(9, 1), [4, 5, 6], index=1)
    requests: list[DraftRequest] = [ask(good), ask(bad)]
    drafter.propose(requests)
    executor.store.keys[:, 4 * PAGE : 6 * PAGE] = float("nan")
    trees = [draft.tree for draft in drafter.propose(requests)]
    assert [tree.size for tree in trees] == [4, 0]
    assert drafter.faults == 1
    assert propose(drafter, bad).size == 4, "it is computed anew"


def test_a_drafter_without_scratch_pages_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="0 scratch pages in a store of 10"):
        ModelDrafter(tiny.make(10), tiny.config, 100, 0)
