"""The compiled decoder: the logits of transformers in every family, and quantised float checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from specbatch_kernels.cpu import Packer, ThreadPool, available, unavailable_reason
from transformers import AutoModelForCausalLM

from specbatch.attention.fused import FusedAttention
from specbatch.cache import KVStore
from specbatch.config import JobConfig
from specbatch.engine.build import build_executor
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.executor import Executor, TorchExecutor
from specbatch.engine.profiles import subject_of
from specbatch.errors import ModelError, UsageError
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import build_decoder
from specbatch.models.linear import PackedLinear
from specbatch.models.packed import PackedWeights, build_packed
from specbatch.models.resolve import resolve_model
from specbatch.models.stored import QuantizedKind
from specbatch.models.weights import load_stored, load_weights
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import build_step
from specbatch.work import Work
from tests.tiny_models import FAMILIES, write_tiny_model

PAGE, LENGTH = 4, 45
CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(not available(), reason=unavailable_reason() or "available")


def executors(directory: Path, kind: QuantizedKind | None = None) -> tuple[Executor, Executor]:
    """Compiled and torch executor over the same checkpoint."""
    files = resolve_model(str(directory), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    shape = (config.num_layers, 64, config.num_kv_heads, config.head_dim)
    packed = build_packed(config, load_stored(files, config, kind), activations="float32")
    compiled = CompiledExecutor(packed, KVStore.zeros(shape, PAGE, torch.float32, CPU), ThreadPool(2))
    weights = load_weights(files, config, kind)
    decoder = build_decoder(config, weights, PackedLinear, torch.float32, CPU)
    return compiled, TorchExecutor(decoder, KVStore.zeros(shape, PAGE, torch.float32, CPU), FusedAttention())


def token_logits(executor: Executor, tokens: list[int], chunk: int) -> torch.Tensor:
    """Logits after every token, computed in prompt chunks."""
    prompt = Prompt(0, "", None, "", tuple(tokens), SamplingParams())
    row = Row(prompt, pages=list(range(1, 2 + len(tokens) // PAGE)))
    logits = []
    while row.cached < len(tokens):
        count = min(chunk, len(tokens) - row.cached)
        step = build_step([Work(row, count)], PAGE)
        logits.append(executor.forward(replace(step, wanted=torch.arange(count))).logits.clone())
        row.cached += count
    return torch.cat(logits)


def random_tokens(vocab_size: int) -> list[int]:
    ids: list[int] = torch.randint(
        0, vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    return ids


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_logits_equal_transformers_in_every_family(tmp_path: Path, family: str) -> None:
    write_tiny_model(tmp_path, family)
    compiled, _ = executors(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = random_tokens(300)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    whole = token_logits(compiled, tokens, LENGTH)
    assert torch.allclose(whole, expected, rtol=1e-4, atol=1e-4)
    for chunk in (7, 1):
        assert torch.equal(token_logits(compiled, tokens, chunk), whole)


@needs_kernels
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_a_quantised_checkpoint_is_one_target_whatever_the_kernels(
    tmp_path: Path, kind: QuantizedKind
) -> None:
    write_tiny_model(tmp_path, "qwen2", intermediate_size=128)
    compiled, reference = executors(tmp_path, kind)
    plain, _ = executors(tmp_path)
    tokens = random_tokens(300)
    quantised = token_logits(compiled, tokens, 16)
    assert torch.allclose(quantised, token_logits(reference, tokens, 16), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(quantised, token_logits(plain, tokens, 16), rtol=1e-4, atol=1e-4)


def test_matrices_get_the_format_asked_for_and_embeddings_eight_bits(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "llama", intermediate_size=128)
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    stored = dict(load_stored(files, config, "q4_0"))
    floats: dict[str, Any] = dict(load_stored(files, config))
    kinds = {name: tensor.kind.name if tensor.kind else None for name, tensor in stored.items()}
    assert kinds["model.layers.0.mlp.down_proj.weight"] == "q4_0"
    assert kinds["model.embed_tokens.weight"] == kinds["lm_head.weight"] == "q8_0"
    assert kinds["model.norm.weight"] is None
    name = "model.layers.1.self_attn.q_proj.weight"
    values = floats[name].data.numpy()
    expected = gguf_dequantize(gguf_quantize(values, GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0)
    assert np.array_equal(stored[name].values().numpy(), expected)
    assert stored[name].shape == floats[name].shape


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "llama", intermediate_size=112)
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    with pytest.raises(ModelError, match="112 columns, q8_0 needs a multiple of 32"):
        list(load_stored(files, config, "q8_0"))
    with pytest.raises(ModelError, match="quantised already"):
        list(load_stored(replace(files, quantization="q4_1"), config, "q8_0"))


def test_kernels_can_be_chosen_and_are_part_of_the_numerics(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "llama")
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    settings: dict[str, Any] = {"input": ("x",), "kv_memory": 2**24, "device": "cpu"}
    built = build_executor(JobConfig(**settings, kernels="torch"), files, config)
    assert isinstance(built.executor, TorchExecutor)
    assert built.numerics["kernels"] == built.kernels == "torch-PackedLinear-fused"
    if available():
        built = build_executor(JobConfig(**settings), files, config)
        assert isinstance(built.executor, CompiledExecutor)
        assert built.numerics["kernels"] == f"compiled-{built.executor.pool.numerics}"
        assert built.kernels == f"compiled-{built.executor.pool.isa}"
        subject = subject_of(JobConfig(**settings), files, config, built, None, None)
        assert subject.fingerprint.kernels == built.kernels  # equal bits take other times
        assert not built.notice


def test_without_compiled_kernels_torch_does_the_work_unless_they_are_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbatch.engine.device.available", lambda: False)
    monkeypatch.setattr("specbatch.engine.device.unavailable_reason", lambda: "no compiler was found")
    write_tiny_model(tmp_path, "llama")
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    settings: dict[str, Any] = {"input": ("x",), "kv_memory": 2**24, "device": "cpu"}
    built = build_executor(JobConfig(**settings), files, config)
    assert isinstance(built.executor, TorchExecutor)
    assert "no compiler was found" in built.notice
    with pytest.raises(UsageError, match="no compiler was found"):
        build_executor(JobConfig(**settings, kernels="compiled"), files, config)


@needs_kernels
def test_what_goes_wrong_while_weights_are_packed_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Packer) -> None:
        raise MemoryError("packing")

    write_tiny_model(tmp_path, "llama")
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    weights = load_stored(files, config)
    monkeypatch.setattr("specbatch.models.packed._drop_copies", lambda *_: None)
    monkeypatch.setattr(Packer, "run", full)
    packing = PackedWeights(config, weights)
    with pytest.raises(MemoryError, match="packing"):
        packing.decoder()
