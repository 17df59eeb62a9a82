"""GGUF files give the tensors, configuration and tokenizer that transformers makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.gguf import read_gguf, read_tensors
from specbatch.models.gguf_blocks import block_type, dequantize, dequantize_reference
from specbatch.models.gguf_convert import gguf_config
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_weights
from specbatch.text.tokenizer import Tokenizer
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import write_tiny_model

FAST = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
TEXTS = (
    "The quick brown fox",
    "  two  spaces, tab\tand\n\nnewlines ",
    "emoji \U0001f642 and \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "中文, 日本語, é à ü",
    "def total(prices): return sum(p for p in prices)",
    "<|im_start|>user\nhello<think><|im_end|>",
    "",
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_fast_dequantisation_equals_the_reference_bit_for_bit(name: str, data: st.DataObject) -> None:
    kind = block_type(GGMLQuantizationType[name].value)
    rows, blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    size = rows * blocks * kind.num_bytes
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(rows, -1)
    with np.errstate(all="ignore"):
        fast, slow = dequantize(raw, kind), dequantize_reference(raw, kind)
    assert fast.shape == (rows, blocks * kind.values)
    # Not-a-number payloads may differ; every number may not, not even in its sign of zero.
    same = fast.view(np.uint32) == slow.view(np.uint32)
    assert (same | (np.isnan(fast) & np.isnan(slow))).all()


def test_dequantisation_is_right_beyond_one_chunk() -> None:
    kind = block_type(GGMLQuantizationType.Q4_1.value)
    raw = np.random.default_rng(0).integers(0, 60, (3, 4000 * kind.num_bytes), np.uint8)
    assert np.array_equal(dequantize(raw, kind), dequantize_reference(raw, kind))


@pytest.mark.parametrize("name", ["Q5_0", "Q4_K", "Q6_K"])
def test_rare_formats_go_through_the_gguf_package(name: str) -> None:
    values, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    kind = block_type(GGMLQuantizationType[name].value)
    assert (kind.name, kind.values, kind.num_bytes) == (name.lower(), values, num_bytes)
    raw = np.random.default_rng(0).integers(0, 60, (2, 3 * num_bytes), np.uint8)
    assert dequantize(raw, kind).shape == (2, 3 * values)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_tensors_equal_those_transformers_loads(tmp_path: Path, family: str, cache: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", family)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", directory, ("Q4_1", "Q8_0", "F16", "BF16", "Q4_0", "Q5_1"))
    files = resolve_model(str(path), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    assert config == ModelConfig.from_directory(directory)
    ours = dict(load_weights(files, config))
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))  # type: ignore[no-untyped-call]
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)  # type: ignore[no-untyped-call]
    theirs = loaded["tensors"]
    assert ours.keys() == theirs.keys()
    assert all(tensor.dtype == torch.float32 for tensor in ours.values())
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_unquantised_file_holds_the_tensors_it_was_made_from(tmp_path: Path, cache: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", directory, ("F32",))
    gguf, direct = (
        resolve_model(str(path), report=lambda _: None),
        resolve_model(str(directory), report=lambda _: None),
    )
    config = ModelConfig.from_directory(directory)
    assert gguf.quantization == direct.quantization == "none"
    source = dict(load_weights(direct, config))
    assert all(torch.equal(source[name], tensor) for name, tensor in load_weights(gguf, config))


def test_converted_tokenizer_gives_the_ids_of_the_original(tmp_path: Path, cache: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "qwen2")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", directory)
    converted = Tokenizer.load(resolve_model(str(path), report=lambda _: None).directory)
    original = AutoTokenizer.from_pretrained(directory)
    by_transformers = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in TEXTS:
        ids = converted.encode(text, add_special_tokens=False)
        assert ids == original.encode(text, add_special_tokens=False)
        assert ids == by_transformers.encode(text, add_special_tokens=False)


def test_smollm_digits_are_split_before_whitespace_is(tmp_path: Path, cache: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", directory)
    converted = resolve_model(str(path), report=lambda _: None).directory
    steps = json.loads((converted / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]
    assert steps[0] == {"type": "Digits", "individual_digits": True}
    assert steps[1]["type"] == "ByteLevel"


def test_side_files_are_converted_once(tmp_path: Path, cache: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    reports: list[str] = []
    first = resolve_model(str(path), report=reports.append)
    moved = shutil.copy(path, tmp_path / "moved.gguf")
    assert resolve_model(str(moved), report=reports.append).directory == first.directory
    assert len(reports) == 1
    assert first.quantization == "q4_1"


def test_end_of_turn_token_ends_a_text_too(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    gguf = read_gguf(path)
    with_turns = type(gguf)(path, {**gguf.metadata, "tokenizer.ggml.eot_token_id": 1}, gguf.tensors)
    assert gguf_config(gguf)["eos_token_id"] == 2
    assert gguf_config(with_turns)["eos_token_id"] == [1, 2]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("general.architecture", "mamba", "mamba"),
        ("llama.expert_count", 8, "mixture-of-experts"),
        ("llama.rope.dimension_count", 8, "partial rotary"),
    ],
)
def test_models_the_decoder_cannot_run_are_refused(
    tmp_path: Path, key: str, value: str | int, words: str
) -> None:
    gguf = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama")))
    changed = type(gguf)(gguf.path, {**gguf.metadata, key: value}, gguf.tensors)
    with pytest.raises(ModelError, match=words):
        gguf_config(changed)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    whole = path.read_bytes()
    for content, words in (
        (b"", "is empty"),
        (b"PK\x03\x04" + whole, "not a GGUF file"),
        (whole[:900], "damaged"),
        (whole[:-5000], "cut short"),
        (b"GGUF\x09" + whole[5:], "version 9"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=words) as caught:
            read_gguf(path)
        assert "\n" not in caught.value.what
        assert caught.value.hint == ("" if words == "version 9" else "fetch the file again")


@pytest.mark.model
def test_default_model_equals_the_reference_dequantisation() -> None:
    files = resolve_model("smollm2-135m", report=lambda _: None)
    gguf = read_gguf(files.weights[0])
    assert (files.quantization, {tensor.kind.name for tensor in gguf.tensors}) == (
        "q4_1",
        {"q4_1", "q8_0", "f32"},
    )
    table = {tensor.hf_name: tensor for tensor in gguf.tensors}
    data = np.memmap(files.weights[0], np.uint8, "r")
    shown = (
        "model.layers.7.mlp.up_proj.weight",
        "model.layers.29.self_attn.v_proj.weight",
        "model.norm.weight",
    )
    found = {name: values for name, values in read_tensors(gguf, 9, 3) if name in shown}
    for name in shown:
        tensor = table[name]
        raw = data[tensor.offset : tensor.offset + tensor.num_bytes].reshape(tensor.shape[0], -1)
        assert np.array_equal(found[name], dequantize_reference(raw, tensor.kind).reshape(tensor.shape))
