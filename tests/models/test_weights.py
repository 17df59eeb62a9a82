"""Weights come out named, complete and equal to what transformers holds, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.export import export_hf
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import expected_shapes, load_weights
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import FAMILIES, write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))


def files_of(spec: Path) -> tuple[ModelFiles, ModelConfig]:
    files = resolve_model(str(spec), report=lambda _: None)
    return files, ModelConfig.from_directory(files.directory)


def load(spec: Path) -> dict[str, torch.Tensor]:
    files, config = files_of(spec)
    pairs = list(load_weights(files, config))
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_values_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    directory = write_tiny_model(tmp_path / "hf", family)
    ours = load(directory)
    theirs = dict(AutoModelForCausalLM.from_pretrained(directory).named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    shapes = expected_shapes(files_of(directory)[1])
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == shapes


def test_stored_type_is_kept(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(weights, directory / "model.safetensors")
    assert {tensor.dtype for tensor in load(directory).values()} == {torch.bfloat16}


def test_sharded_equals_whole(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole", "qwen3")
    expected, digest = load(whole), files_of(whole)[0].digest
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(whole, max_shard_size="60KB")
    (whole / "model.safetensors").unlink(missing_ok=True)
    sharded = load(whole)
    files = files_of(whole)[0]
    assert len(files.weights) > 2
    assert sharded.keys() == expected.keys()
    assert all(torch.equal(sharded[name], expected[name]) for name in expected)
    assert files.digest != digest
    files.weights[1].unlink()
    with pytest.raises(ModelError, match=files.weights[1].name):
        files_of(whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("drop", r"lack tensors: model\.layers\.1\.mlp\.up_proj\.weight"),
        ("add", r"hold unknown tensors: model\.layers\.0\.self_attn\.sinks"),
        ("cut", r"hold misshapen tensors: model\.norm\.weight is \[32\], expected \[64\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: str, words: str) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    weights = load_file(directory / "model.safetensors")
    if change == "drop":
        del weights["model.layers.1.mlp.up_proj.weight"]
    elif change == "add":
        weights["model.layers.0.self_attn.sinks"] = torch.zeros(4)
    else:
        weights["model.norm.weight"] = weights["model.norm.weight"][:32].clone()
    save_file(weights, directory / "model.safetensors")
    files, config = files_of(directory)
    with pytest.raises(ModelError, match=words):
        next(load_weights(files, config))


def test_superfluous_tensors_are_left_out(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "qwen2")
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, directory / "model.safetensors")
    assert load(directory).keys() == expected_shapes(files_of(directory)[1]).keys()


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    files, config = files_of(directory)
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        next(load_weights(files, config))


@pytest.mark.parametrize("source", ["gguf", "safetensors"])
def test_export_loads_in_transformers_with_the_same_logits_and_text(tmp_path: Path, source: str) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    spec = write_tiny_gguf(tmp_path / "tiny.gguf", directory, ("F32",)) if source == "gguf" else directory
    files, config = files_of(spec)
    target = tmp_path / "out" / "model"
    export_hf(files, config, target)
    tokens = torch.arange(5, 25)[None]
    original = AutoModelForCausalLM.from_pretrained(directory)
    exported = AutoModelForCausalLM.from_pretrained(target)
    assert exported.dtype == torch.float32
    assert torch.equal(original(tokens).logits, exported(tokens).logits)
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (directory, target)]
    chat = [{"role": "user", "content": "Name a fox."}]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for tokenizer in tokenizers
    ]
    assert texts[0] == texts[1]
    assert tokenizers[0](texts[0]).input_ids == tokenizers[1](texts[1]).input_ids
    assert json.loads((target / "config.json").read_text())["torch_dtype"] == "float32"


def test_export_leaves_what_is_there_alone(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    files, config = files_of(directory)
    before = sorted(directory.iterdir())
    with pytest.raises(ModelError, match="not an empty directory"):
        export_hf(files, config, directory)
    assert sorted(directory.iterdir()) == before
