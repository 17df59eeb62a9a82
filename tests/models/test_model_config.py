"""Configurations are read as transformers reads them, and refused where the decoder would be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from specbatch.errors import ModelError
from specbatch.models.config import SUPPORTED, ModelConfig, RopeScaling
from tests.tiny_models import FAMILIES, write_tiny_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def read(directory: Path, **changes: object) -> ModelConfig:
    settings = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(settings))
    return ModelConfig.from_directory(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_as_transformers_writes_it(tmp_path: Path, family: str) -> None:
    config = ModelConfig.from_directory(write_tiny_model(tmp_path, family))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert config.architecture == family
    assert config.head_dim == theirs.head_dim if family == "qwen3" else 16
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.tie_embeddings == theirs.tie_word_embeddings
    assert (config.qkv_bias, config.qk_norm) == (family == "qwen2", family == "qwen3")
    assert config.eos_ids == {2}
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert config.num_parameters == sum(weight.numel() for weight in model.parameters())


def test_supported_families_are_the_tiny_ones() -> None:
    assert set(SUPPORTED) == set(FAMILIES)


def test_absent_keys_have_the_meaning_they_have_in_transformers(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=...)
    assert (config.num_kv_heads, config.head_dim) == (8, 8)
    assert (config.rope_theta, config.rope_scaling) == (10000.0, None)
    assert not config.tie_embeddings
    assert config.eos_ids == frozenset()


@pytest.mark.parametrize("key", ["hidden_size", "rms_norm_eps", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [..., 0, -1, "64", True])
def test_missing_and_senseless_values_name_the_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=key):
        read(tmp_path, **{key: value})


def test_rotary_settings_old_and_new_style(tmp_path: Path) -> None:
    new = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    assert read(tmp_path, rope_parameters=new).rope_scaling == RopeScaling("linear", 4.0)
    assert read(tmp_path, rope_parameters=new).rope_theta == 500.0
    old = read(tmp_path, rope_theta=1e6, rope_scaling={"type": "linear", "factor": 2.0})
    assert (old.rope_theta, old.rope_scaling) == (1e6, RopeScaling("linear", 2.0))
    long = read(tmp_path, rope_scaling={"rope_type": "llama3", **LLAMA3_ROPE})
    assert long.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 256)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma2"}, "gemma2.*not supported"),
        ({"model_type": ...}, "None.*not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_what_the_decoder_lacks_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, **changes)


def test_sliding_window_limits_the_context(tmp_path: Path) -> None:
    mistral = read(tmp_path, model_type="mistral", sliding_window=1024)
    assert (mistral.sliding_window, mistral.max_context) == (1024, 1024)
    unused = read(tmp_path, model_type="qwen2", sliding_window=1024, use_sliding_window=False)
    assert (unused.sliding_window, unused.max_context) == (None, 4096)
    some = read(
        tmp_path, model_type="qwen2", sliding_window=512, layer_types=["full_attention", "sliding_attention"]
    )
    assert some.max_context == 512


def test_end_tokens_of_the_generation_settings_win(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=[2, 3]).eos_ids == {2, 3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read(tmp_path, eos_token_id=2).eos_ids == {5, 6}
    (tmp_path / "generation_config.json").write_text("{}")
    assert read(tmp_path, eos_token_id=2).eos_ids == {2}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        ModelConfig.from_directory(tmp_path)
    for content in ("{", "[]", "\x00"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"config\.json"):
            ModelConfig.from_directory(tmp_path)
