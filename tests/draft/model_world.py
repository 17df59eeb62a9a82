"""A tiny draft model behind a counting executor, and rows that lie on pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from specbatch_kernels.cpu import ThreadPool, available
from torch import Tensor

from specbatch.attention.fused import FusedAttention
from specbatch.cache import KVStore
from specbatch.draft.base import TreeShape
from specbatch.draft.model import DraftExecutor, ModelDrafter
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.executor import TorchExecutor
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import build_decoder
from specbatch.models.files import ModelFiles
from specbatch.models.linear import PackedLinear
from specbatch.models.packed import build_packed
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_stored, load_weights
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import PassOutput, Step, build_step
from specbatch.tree import TokenTree
from specbatch.work import Work
from tests.draft.rows_in_hand import ask, make_row
from tests.tiny_models import write_tiny_model

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


def make_tiny(directory: Path, kernels: str) -> Tiny:
    """Written to a directory, run by ``torch`` or ``compiled`` kernels."""
    write_tiny_model(directory, "llama", max_position_embeddings=64)
    files = resolve_model(str(directory), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    if kernels == "compiled":
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
