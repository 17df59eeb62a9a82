"""What is trained is what drafts: the network with gradients equals the compiled pass of a saved head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specbatch_kernels.cpu import (
    AttentionKeys,
    DraftBatch,
    DraftOutputs,
    KvCache,
    Placement,
    ThreadPool,
    available,
    pack,
)
from torch import Tensor

from specbatch.draft.head_module import HeadModule
from specbatch.draft.head_runner import HeadRunner, compile_head
from specbatch.draft.head_weights import HeadWeights, load_head, save_head
from specbatch.draft.training.batch import Batch
from specbatch.draft.training.batch import pack as pack_documents
from specbatch.draft.training.unroll import unroll
from specbatch.draft.training.warm_start import head_config
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.models.rotary import rotary_table
from specbatch.models.stored import StoredTensor
from tests.draft.test_training_network import make_example
from tests.tiny_models import write_tiny_model

if not available():
    pytest.skip("the compiled kernels are missing", allow_module_level=True)

DRAFT, LENGTH, ROOT = 40, 20, 5


def make_module(files: ModelFiles, target: ModelConfig) -> HeadModule:
    torch.manual_seed(3)
    embedding = torch.randn(target.vocab_size, target.hidden_size)
    module = HeadModule(head_config(files, target, DRAFT), embedding, rotary_table(target))
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else noise / parameter.shape[1] ** 0.5)
    return module


def saved(module: HeadModule, target: ModelConfig, folder: Path) -> HeadWeights:
    tensors = {name: StoredTensor(module.get_parameter(name)) for name in module.config.shapes}
    path = folder / "head.safetensors"
    save_head(HeadWeights(module.config, tensors, 2 * torch.arange(DRAFT)), path, "none")
    return load_head(path, target)


def run(
    runner: HeadRunner, cache: KvCache, tokens: Tensor, first: int, source: Tensor
) -> tuple[Tensor, Tensor]:
    """One pass of a row that owns all pages; its entries stand at ``first`` onwards."""
    count = len(tokens)
    positions = torch.arange(first, first + count)
    none = torch.zeros(count + 1, dtype=torch.int32)
    pages = torch.arange(cache.k.shape[0] // cache.page_size, dtype=torch.int32).unsqueeze(0)
    keys = AttentionKeys(
        pages, torch.zeros(count, dtype=torch.int32), (positions + 1).to(torch.int32), none, none[:0]
    )
    features, states = (source, None) if source.dim() == 3 else (None, source)
    index = None if states is None else torch.arange(count)
    batch = DraftBatch(
        tokens, Placement(positions, positions), keys, torch.arange(count), features, states, index
    )
    outputs = DraftOutputs(
        temperature=torch.zeros(count, dtype=torch.float64),
        noise=torch.zeros(count, dtype=torch.int64),
        states=torch.empty(count, runner.config.hidden),
        ids=torch.empty((count, 3), dtype=torch.int64),
        log_probs=torch.empty((count, 3), dtype=torch.float64),
        scores=torch.empty((count, 3), dtype=torch.float64),
        logits=torch.empty((count, DRAFT)),
    )
    runner.run(batch, cache, outputs)
    assert outputs.logits is not None
    assert torch.equal(outputs.ids[:, 0], 2 * outputs.logits.argmax(dim=1))
    return outputs.states, outputs.logits


def make_batch(target: ModelConfig) -> Batch:
    example = make_example(LENGTH, ROOT, 1, hidden=target.hidden_size)
    return pack_documents([example], user_weight=0.3)


def test_training_and_drafting_compute_the_same(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model", "llama")
    files = resolve_model(str(directory), report=lambda _line: None)
    target = ModelConfig.from_directory(directory)
    module, batch = make_module(files, target), make_batch(target)
    with torch.no_grad():
        steps = unroll(module, batch, 2)
        logits = [step.outputs @ module.lm_head.weight.T for step in steps]
    shape = (64, target.num_kv_heads, target.head_dim)
    with ThreadPool(1) as pool:
        runner = compile_head(
            saved(module, target, tmp_path), target, pack(module.embedding.contiguous(), "f32"), pool
        )
        cache = KvCache(torch.zeros(shape), torch.zeros(shape), 16)
        states, found = run(runner, cache, batch.tokens, 0, batch.features)
        torch.testing.assert_close(states, steps[0].outputs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found, logits[0], rtol=1e-4, atol=1e-4)
        # A chain from the third answer token: true entries up to it, then two that feed back.
        root = ROOT + 2
        states, _ = run(runner, cache, batch.tokens[: root + 1], 0, batch.features[: root + 1])
        for step in (1, 2):
            here = root + step
            states, found = run(runner, cache, batch.tokens[here : here + 1], here, states[-1:])
            chain = steps[step].entries.tolist().index(here)
            torch.testing.assert_close(found[0], logits[step][chain], rtol=1e-4, atol=1e-4)
