"""GGUF metadata → the side files of a Hugging Face directory: configuration, tokenizer, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from specbatch.errors import ModelError
from specbatch.models.config import SUPPORTED
from specbatch.models.files import (
    CHAT_TEMPLATE,
    CONFIG,
    CONVERSION,
    GENERATION_CONFIG,
    MANIFEST,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from specbatch.models.gguf import GgufFile, Scalar, read_gguf

_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
)
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


def write_side_files(path: Path, directory: Path) -> None:
    """Write everything but the weights of a GGUF file into a directory, the manifest last.

    Raises:
        ModelError: The file is not GGUF or its architecture or tokenizer is not supported.
    """
    gguf = read_gguf(path)
    config = gguf_config(gguf)
    tokenizer = _load_tokenizer(path)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    if gguf.metadata.get("tokenizer.ggml.pre") == "smollm":
        _split_digits(backend)
    special = {name: getattr(tokenizer, name) for name in _SPECIAL_TOKENS}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        **{name: token for name, token in special.items() if token is not None},
    }
    generation = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config
    }
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / CONFIG, config)
    _write_json(directory / GENERATION_CONFIG, generation)
    _write_json(directory / TOKENIZER, backend)
    _write_json(directory / TOKENIZER_CONFIG, settings)
    if tokenizer.chat_template is not None:
        (directory / CHAT_TEMPLATE).write_text(tokenizer.chat_template, encoding="utf-8")
    _write_json(directory / MANIFEST, {"conversion": CONVERSION, "quantization": gguf.quantization})


def gguf_config(gguf: GgufFile) -> dict[str, Any]:
    """``config.json`` of the model in a GGUF file, as transformers would write it.

    Raises:
        ModelError: The architecture is not supported or a needed key is missing.
    """
    architecture = gguf.architecture
    if architecture not in _CLASSES:
        raise ModelError(
            f"{gguf.path}: GGUF architecture {architecture!r} is not supported by the native engine",
            f"supported: {', '.join(sorted(_CLASSES))} (model types {', '.join(SUPPORTED)})",
        )
    _refuse_variants(gguf)
    heads = int(_needed(gguf, "attention.head_count"))
    hidden = int(_needed(gguf, "embedding_length"))
    config: dict[str, Any] = {
        "model_type": architecture,
        "architectures": [_CLASSES[architecture]],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(_needed(gguf, "feed_forward_length")),
        "num_hidden_layers": int(_needed(gguf, "block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_optional(gguf, "attention.head_count_kv", heads)),
        "head_dim": int(_optional(gguf, "attention.key_length", hidden // heads)),
        "max_position_embeddings": int(_needed(gguf, "context_length")),
        "rms_norm_eps": _decimal(_needed(gguf, "attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(_optional(gguf, "rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(gguf),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in gguf.tensors),
        "vocab_size": _vocab_size(gguf),
        "torch_dtype": "float32",
    }
    return config | _token_ids(gguf)


def _vocab_size(gguf: GgufFile) -> int:
    """Rows of the embedding matrix: the vocabulary, padding included."""
    for tensor in gguf.tensors:
        if tensor.name == "token_embd.weight":
            return tensor.shape[0]
    raise ModelError(f"{gguf.path} has no tensor token_embd.weight")


def _token_ids(gguf: GgufFile) -> dict[str, int | list[int]]:
    """Special token ids; the end-of-turn token of chat models ends a text too."""
    found: dict[str, int | list[int]] = {}
    for key, name in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
        token = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            found[name] = int(token)
    ends = [gguf.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    ids = sorted({int(token) for token in ends if token is not None})
    if ids:
        found["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return found


def _rope_scaling(gguf: GgufFile) -> dict[str, Any] | None:
    kind = _optional(gguf, "rope.scaling.type", "none")
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": _decimal(_needed(gguf, "rope.scaling.factor"))}


def _refuse_variants(gguf: GgufFile) -> None:
    """Refuse what GGUF files of supported architectures can hold and the decoder cannot run."""
    if int(_optional(gguf, "expert_count", 0)) > 0:
        raise ModelError(f"{gguf.path}: mixture-of-experts models are not supported")
    if any(tensor.name == "rope_freqs.weight" for tensor in gguf.tensors):
        raise ModelError(
            f"{gguf.path}: rotary factors stored as a tensor (Llama 3.1 and later) are not supported",
            "use the safetensors checkpoint of this model",
        )
    hidden, heads = int(_needed(gguf, "embedding_length")), int(_needed(gguf, "attention.head_count"))
    head_dim = int(_optional(gguf, "attention.key_length", hidden // heads))
    rotary = int(_optional(gguf, "rope.dimension_count", head_dim))
    if rotary != head_dim:
        raise ModelError(f"{gguf.path}: partial rotary embedding ({rotary} of {head_dim}) is not supported")


def _needed(gguf: GgufFile, key: str) -> Scalar:
    value = gguf.metadata.get(f"{gguf.architecture}.{key}")
    if value is None:
        raise ModelError(f"{gguf.path}: GGUF key {gguf.architecture}.{key} is missing")
    return value


def _optional(gguf: GgufFile, key: str, default: Scalar) -> Scalar:
    return gguf.metadata.get(f"{gguf.architecture}.{key}", default)


def _decimal(value: Scalar) -> float:
    """The number that was rounded to float32 for the file: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _load_tokenizer(path: Path) -> Any:
    """The tokenizer as transformers converts it."""
    # Slow to import, and needed once per model.
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    try:
        return PreTrainedTokenizerFast.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: the tokenizer cannot be converted: {error}") from error


def _split_digits(backend: dict[str, Any]) -> None:
    """Split every digit off before byte-level splitting, as SmolLM's own tokenizer does.

    transformers' conversion leaves this out. It shows where whitespace precedes a digit: ``"a  1"``
    holds the token of two spaces.
    """
    digits = {"type": "Digits", "individual_digits": True}
    backend["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, backend["pre_tokenizer"]]}


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
