"""Draft heads on disk: what is written is what is read, published layouts included; misfits are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbatch.draft.head_build import find_head
from specbatch.draft.head_weights import HeadWeights, load_head, read_head_config, save_head
from specbatch.errors import ModelError
from specbatch.models.config import RopeScaling
from specbatch.models.files import ModelFiles
from tests.draft.heads_in_hand import CONFIG, TARGET, VOCABULARY, random_embedding, random_head

EAGLE3 = replace(CONFIG, feature_norm="none", norm_output=False, target_digest="", target_name="")


def layer_settings(**changes: Any) -> dict[str, Any]:
    """The keys that every family writes as transformers does."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": 24,
        **changes,
    }


def publish(
    directory: Path,
    weights: HeadWeights,
    settings: dict[str, Any],
    rename: Callable[[str], str] = str,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write a checkpoint as others do."""
    directory.mkdir(exist_ok=True)
    tensors = {rename(name): tensor.data.to(dtype) for name, tensor in weights.tensors.items()}
    tensors["d2t"] = weights.target_ids - torch.arange(24)
    tensors["t2d"] = torch.isin(torch.arange(VOCABULARY), weights.target_ids)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(settings))
    return directory


def speculators_name(name: str) -> str:
    return name.replace("midlayer.", "layers.0.")


def vllm_name(name: str) -> str:
    return "model." + name.replace("feature_norms.", "fc_norm.") if "lm_head" not in name else name


def same(a: HeadWeights, b: HeadWeights, tolerance: float = 0.0) -> bool:
    def close(x: Tensor, y: Tensor) -> bool:
        return bool((x - y).abs().max() <= tolerance * y.abs().max())

    names = a.tensors.keys() == b.tensors.keys() and torch.equal(a.target_ids, b.target_ids)
    return names and all(close(a.values(name), b.values(name)) for name in a.tensors)


@pytest.mark.parametrize(("form", "tolerance"), [("none", 0.0), ("q8_0", 0.01), ("q4_0", 0.13)])
@pytest.mark.parametrize("own_embedding", [False, True])
def test_our_file_returns_what_was_saved(
    tmp_path: Path, form: Any, tolerance: float, own_embedding: bool
) -> None:
    config = replace(CONFIG, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64), norm_before_residual=True)
    weights = random_head(config)
    if own_embedding:
        stored = replace(weights.tensors["fc.weight"], data=random_embedding())
        weights = replace(weights, embedding=stored)
    path = tmp_path / "deeper" / "head.safetensors"
    save_head(weights, path, form)
    for place in (path, path.parent):
        found = load_head(place, TARGET)
        assert found.config == config
        assert same(found, weights, tolerance)
        assert (found.embedding is not None) == own_embedding
    assert read_head_config(path) == config
    kinds = {tensor.kind.name for tensor in found.tensors.values() if tensor.kind is not None}
    assert kinds == (set() if form == "none" else {form})
    assert [p.name for p in path.parent.iterdir()] == ["head.safetensors"]


def test_blocks_are_saved_as_they_are(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path / "a.safetensors", "q4_0")
    save_head(load_head(tmp_path / "a.safetensors", TARGET), tmp_path / "b.safetensors", "q8_0")
    with safe_open(tmp_path / "a.safetensors", "pt") as a, safe_open(tmp_path / "b.safetensors", "pt") as b:
        assert a.metadata() == b.metadata()
        assert all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in a.keys())  # noqa: SIM118


def test_the_authors_layout_with_ids_of_layer_outputs(tmp_path: Path) -> None:
    weights = random_head(EAGLE3)
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}}
    found = load_head(publish(tmp_path / "head", weights, layer_settings(**nested)), TARGET)
    assert found.config == replace(EAGLE3, captured=(1, 2, 3))
    assert found.config.variant == "eagle3"
    assert same(found, weights, 0.01)
    assert found.tensors["fc.weight"].data.dtype == torch.bfloat16


def test_the_speculators_layout_with_ids_of_layer_inputs(tmp_path: Path) -> None:
    config = replace(EAGLE3, norm_before_residual=True, feature_norm="joint", captured=(0, 2, 4))
    settings = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer_settings(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "draft_vocab_size": 24,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 4],
    }
    weights = random_head(config)
    found = load_head(publish(tmp_path / "head", weights, settings, speculators_name), TARGET)
    assert found.config == replace(config, rope_scaling=RopeScaling("linear", 2.0))
    assert same(found, weights, 0.01)


def test_eagle_31_as_vllm_reads_it(tmp_path: Path) -> None:
    config = replace(CONFIG, target_digest="", target_name="", captured=(2, 1))
    settings = layer_settings(
        fc_norm=True, norm_output=True, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    del settings["rope_theta"]
    weights = random_head(config)
    found = load_head(publish(tmp_path / "head", weights, settings, vllm_name), TARGET)
    assert found.config == config  # (2, n/2, n - 3) of four layers are the inputs of layers 2 and 1
    assert found.config.variant == "eagle3.1"
    assert same(found, weights, 0.01)


def test_a_pickle_is_read_without_running_it(tmp_path: Path) -> None:
    weights = random_head(replace(EAGLE3, captured=(2, 1)))
    publish(tmp_path, weights, layer_settings())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert same(load_head(tmp_path, TARGET), weights, 0.01)
    torch.save({**tensors, "code": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="is damaged"):
        load_head(tmp_path, TARGET)


def test_an_embedding_of_its_own_is_kept(tmp_path: Path) -> None:
    weights = random_head(replace(EAGLE3, captured=(2, 1)))
    publish(tmp_path, weights, layer_settings())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({**tensors, "embed_tokens.weight": random_embedding()}, tmp_path / "model.safetensors")
    embedding = load_head(tmp_path, TARGET).embedding
    assert embedding is not None
    assert torch.equal(embedding.values(), random_embedding())
    save_file({**tensors, "embed_tokens.weight": random_embedding()[1:]}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"embeds \[39, 32\] tokens"):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"hidden_size": 64}, "reads features of width 32, the model's are 64 wide"),
        ({"num_layers": 2}, r"reads layers \[0, 2, 3\], the model has 2"),
        ({"vocab_size": 20}, "proposes 24 tokens, the model has 20"),
        ({"vocab_size": 30}, "leaves the model's 30 tokens"),
    ],
)
def test_a_head_for_another_target_is_refused(tmp_path: Path, target: dict[str, Any], message: str) -> None:
    save_head(random_head(), tmp_path / "head.safetensors", "none")
    with pytest.raises(ModelError, match=message):
        load_head(tmp_path / "head.safetensors", replace(TARGET, **target))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"draft_vocab_size": None}, "draft_vocab_size"),
        ({"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
        ({"fc_norm": True}, r"lacks tensors: feature_norms.0.weight, feature_norms.1.weight"),
        ({"intermediate_size": 96}, r"gate_proj.weight is \[64, 32\], expected \[96, 32\]"),
        ({"draft_vocab_size": 25}, r"a d2t of shape \[24\] for 25 draft tokens"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    publish(tmp_path, random_head(replace(EAGLE3, captured=(2, 1))), layer_settings(**change))
    with pytest.raises(ModelError, match=message):
        load_head(tmp_path, TARGET)


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    weights = random_head(replace(EAGLE3, captured=(2, 1)))
    biased = {**weights.tensors, "midlayer.self_attn.q_proj.bias": weights.tensors["norm.weight"]}
    publish(tmp_path, replace(weights, tensors=biased), layer_settings())
    with pytest.raises(ModelError, match=r"holds unknown tensors: midlayer.self_attn.q_proj.bias"):
        load_head(tmp_path, TARGET)


def test_missing_and_damaged_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no draft head at"):
        load_head(tmp_path / "nowhere", TARGET)
    with pytest.raises(ModelError, match="holds 0 weight files"):
        load_head(tmp_path, TARGET)
    path = tmp_path / "head.safetensors"
    path.write_bytes(b"garbage" * 99)
    with pytest.raises(ModelError, match="is damaged"):
        load_head(path, TARGET)
    save_file({"x": torch.zeros(1)}, path, {"format": "specbatch-head", "version": "2"})
    with pytest.raises(ModelError, match="has version 2 of the draft head format"):
        load_head(path, TARGET)
    save_file({"x": torch.zeros(1)}, path, {"format": "specbatch-head", "version": "1", "config": "{}"})
    with pytest.raises(ModelError, match="metadata of the draft head"):
        load_head(path, TARGET)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match=r"is no draft head of specbatch, and no config\.json"):
        load_head(path, TARGET)
    with pytest.raises(ModelError, match="is not a draft head of specbatch"):
        read_head_config(path)


def test_a_shipped_head_is_found_by_the_digest_of_its_target(tmp_path: Path) -> None:
    def files(digest: str) -> ModelFiles:
        return ModelFiles("x", tmp_path, (), "gguf", digest, "", "q4_1")

    for name, digest in (("a", "a" * 64), ("b", "b" * 64)):
        save_head(
            random_head(replace(CONFIG, target_digest=digest)), tmp_path / f"{name}.safetensors", "q8_0"
        )
    assert find_head(files("b" * 64), shipped=tmp_path) == tmp_path / "b.safetensors"
    assert find_head(files("c" * 64), shipped=tmp_path) is None
    assert find_head(files("c" * 64), Path("mine"), tmp_path) == Path("mine")
    assert find_head(files("c" * 64)) is None
