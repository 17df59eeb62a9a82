"""The model drafter: its trees say what the draft model says, wherever its keys and values lie."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import tokenizers
import torch
from specbatch_kernels.cpu import ThreadPool, available
from torch import Tensor

from specbatch.attention.fused import FusedAttention
from specbatch.cache import KVStore
from specbatch.draft.base import DraftRequest, TreeShape
from specbatch.draft.model import DraftExecutor, ModelDrafter, check_pair
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.executor import TorchExecutor
from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import build_decoder
from specbatch.models.files import ModelFiles
from specbatch.models.linear import PackedLinear
from specbatch.models.packed import build_packed
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_stored, load_weights
from specbatch.randomness import gumbel
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import PassOutput, Step, Work, build_step
from specbatch.text.tokenizer import Tokenizer
from specbatch.tree import TokenTree
from tests.draft.rows_in_hand import ask, make_row
from tests.tiny_models import byte_level_tokenizer, write_tiny_model

PAGE, PAGES, SCRATCH = 4, 40, 24
CPU = torch.device("cpu")
CHAIN, TREE = TreeShape(4, 1, 4), TreeShape(3, 3, 30)
KERNELS = ["torch", pytest.param("compiled", marks=pytest.mark.skipif(not available(), reason="no kernels"))]


@dataclass
class Counted:
    """An executor that keeps the steps it was given."""

    inner: DraftExecutor
    steps: list[Step] = field(default_factory=list)

    @property
    def store(self) -> KVStore:
        store = self.inner.store
        assert isinstance(store, KVStore)
        return store

    def forward(self, step: Step) -> PassOutput:
        self.steps.append(step)
        return self.inner.forward(step)


@dataclass(frozen=True)
class Tiny:
    """A tiny model: executors over stores of any size, and its own next-token logits."""

    files: ModelFiles
    config: ModelConfig
    make: Callable[[int], DraftExecutor]

    def drafter(self, scratch: int = SCRATCH, vocab: int | None = None) -> tuple[ModelDrafter, Counted]:
        executor = Counted(self.make(PAGES + scratch))
        vocab = self.config.vocab_size if vocab is None else vocab
        return ModelDrafter(executor, self.config, vocab, scratch), executor

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """After all these tokens, plainly computed."""
        pages = list(range(1, 2 + len(tokens) // PAGE))
        row = Row(Prompt(0, "", None, "", tuple(tokens), SamplingParams()), pages=pages)
        output = self.make(PAGES).forward(build_step([Work(row, len(tokens))], PAGE))
        return output.logits[0].double()

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """How the model goes on by itself."""
        text = list(tokens)
        for _ in range(count):
            text.append(int(self.logits(text).argmax()))
        return text[len(tokens) :]


@pytest.fixture(scope="module", params=KERNELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    directory = write_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", "llama", max_position_embeddings=64
    )
    files = resolve_model(str(directory), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    if request.param == "compiled":
        packed, pool = build_packed(config, load_stored(files, config, None)), ThreadPool(1)
        return Tiny(files, config, lambda pages: CompiledExecutor(packed, _store(config, pages), pool))
    decoder = build_decoder(config, load_weights(files, config, None), PackedLinear, torch.float32, CPU)
    return Tiny(files, config, lambda pages: TorchExecutor(decoder, _store(config, pages), FusedAttention()))


def _store(config: ModelConfig, pages: int) -> KVStore:
    shape = (config.num_layers, pages, config.num_kv_heads, config.head_dim)
    return KVStore.zeros(shape, PAGE, torch.float32, CPU)


def text_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 300, (length,), generator=generator).tolist()


def placed(tokens: Sequence[int], pages: Sequence[int], output: int = 1, **named: float) -> Row:
    """A row whose last tokens are output, on these pages."""
    row = make_row(tokens[:-output], tokens[-output:], int(named.pop("index", 0)), **named)
    row.pages = list(pages)
    return row


def propose(drafter: ModelDrafter, row: Row, shape: TreeShape = CHAIN) -> TokenTree:
    (draft,) = drafter.propose([ask(row, shape)])
    draft.tree.check()
    return draft.tree


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


def tokenizer(change: Callable[[dict[str, int]], None] | None = None, markup: bool = True) -> Tokenizer:
    state = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    if change is not None:
        change(state["model"]["vocab"])
        state["model"]["merges"] = []
    for entry in state["added_tokens"]:
        entry["special"] = markup if entry["content"] == "<|im_end|>" else entry["special"]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))


def swap(vocab: dict[str, int]) -> None:
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]


def without_tilde(vocab: dict[str, int]) -> None:
    del vocab["~"]


def test_a_draft_model_with_other_tokens_is_refused_with_the_reason(tiny: Tiny) -> None:
    ours = Tokenizer.load(tiny.files.directory)
    check_pair(("target", ours), ("draft", tokenizer()), tiny.config)
    swapped = r"draft cannot draft for target: 2 of \d+ token ids differ, the first is \d+: 'A' against 'B'"
    with pytest.raises(ModelError, match=swapped):
        check_pair(("target", ours), ("draft", tokenizer(swap)), tiny.config)
    with pytest.raises(ModelError, match=r"token 2 \('<\|im_end\|>'\) is markup in only one of them"):
        check_pair(("target", ours), ("draft", tokenizer(markup=False)), tiny.config)
    missing = r"\d+ of \d+ token ids differ, the first is \d+: '~' against no token"
    with pytest.raises(ModelError, match=missing):
        check_pair(("target", ours), ("draft", tokenizer(without_tilde)), tiny.config)
    small = replace(tiny.config, vocab_size=ours.vocab_size - 1)
    with pytest.raises(ModelError, match=r"its embedding has \d+ rows, the tokenizer \d+ ids"):
        check_pair(("target", ours), ("draft", ours), small)
