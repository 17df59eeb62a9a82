"""Small GGUF files in the way llama.cpp's converter writes them, from the tiny models."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import QuantError, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(path: Path, directory: Path, kinds: Sequence[str] = ("Q4_1",)) -> Path:
    """Convert a directory of :mod:`tests.tiny_models` with a byte-level tokenizer.

    Args:
        path: File to write.
        directory: Source.
        kinds: Formats that matrices take in turn; float16 where a row is no multiple of the block.

    Returns:
        The file.
    """
    config = json.loads((directory / "config.json").read_text())
    writer = GGUFWriter(str(path), config["model_type"])
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, directory, config["vocab_size"])
    choices = itertools.cycle(kinds)
    for name, values in load_file(directory / "model.safetensors").items():
        heads = {"q_proj.weight": "num_attention_heads", "k_proj.weight": "num_key_value_heads"}
        key = next((heads[end] for end in heads if name.endswith(end)), None)
        stored = _interleave(values, config[key]) if key and config["model_type"] == "llama" else values
        _add_tensor(writer, _gguf_name(name), stored, next(choices) if values.ndim > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, directory: Path, vocab_size: int) -> None:
    backend = json.loads((directory / "tokenizer.json").read_text())
    vocab: dict[str, int] = backend["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [1] * len(tokens)
    for entry in backend["added_tokens"]:
        if entry["id"] >= len(tokens):
            tokens.append(entry["content"])
            kinds.append(4)
        if entry["special"]:
            kinds[entry["id"]] = 3
    while len(tokens) < vocab_size:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in backend["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template((directory / "chat_template.jinja").read_text())


def _add_tensor(writer: GGUFWriter, name: str, values: NDArray[np.float32], kind: str) -> None:
    wanted = GGMLQuantizationType[kind]
    try:
        data = quantize(values, wanted)
    except QuantError:
        wanted = GGMLQuantizationType.F16
        data = quantize(values, wanted)
    writer.add_tensor(name, data, raw_dtype=wanted)


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"


def _interleave(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """``LlamaModel.permute`` of llama.cpp's ``convert_hf_to_gguf.py``."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
