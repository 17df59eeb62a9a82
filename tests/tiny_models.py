"""Small random models of every supported family, written as Hugging Face directories.

They are built by transformers from its own configurations, so what transformers computes with them
is the reference for ours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. A journey of a thousand miles begins with one step.",
    "Extract the names of all people and places from the text below and answer in one line of JSON.",
    "def total(prices): return sum(price * amount for price, amount in prices.items())",
    "She sells sea shells by the sea shore; the shells she sells are surely sea shells.",
)
_MERGES = 100


def write_tiny_model(directory: Path, family: str, seed: int = 0, **overrides: Any) -> Path:
    """Write ``config.json``, ``model.safetensors`` and a working tokenizer.

    Args:
        directory: Created when missing.
        family: One of ``FAMILIES``. ``mistral`` has a SentencePiece-like tokenizer with byte
            fallback and no chat template; the others are byte-level with ChatML.
        seed: Of the weights.
        overrides: Settings of the transformers configuration, such as ``rope_scaling``.

    Returns:
        The directory.
    """
    tokenizer = sentencepiece_tokenizer() if family == "mistral" else byte_level_tokenizer()
    vocab_size = len(tokenizer) + 3  # padded, as in many checkpoints
    config = tiny_config(family, vocab_size, tokenizer.eos_token_id, **overrides)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    _randomise(model, seed)
    model.float().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_config(family: str, vocab_size: int, eos_token_id: int, **overrides: Any) -> PretrainedConfig:
    """Grouped-query attention everywhere; Qwen3's heads are wider than hidden / heads."""
    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    classes: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
        "llama": (LlamaConfig, {"tie_word_embeddings": False}),
        "mistral": (MistralConfig, {"sliding_window": None, "rms_norm_eps": 1e-5}),
        "qwen2": (Qwen2Config, {"tie_word_embeddings": True, "rope_theta": 1e6}),
        "qwen3": (Qwen3Config, {"tie_word_embeddings": True, "head_dim": 32}),
    }
    config, own = classes[family]
    return config(**{**shared, **own, **overrides})


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with 256 bytes, about a hundred merges and ChatML markup."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=259 + _MERGES,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """BPE over words marked with ``▁``, unknown characters as byte tokens, as in Llama 2 and Mistral."""
    marked = ["▁" + text.replace(" ", "▁") for text in _CORPUS]
    trained = tokenizers.Tokenizer(models.BPE())
    trained.train_from_iterator(marked, trainers.BpeTrainer(vocab_size=60 + _MERGES, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    merges = [_pair(merge) for merge in learned["merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights large enough that tokens differ clearly; norms and biases that are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            weight.copy_(1.0 + 0.2 * noise)
        elif weight.ndim == 1:
            weight.copy_(0.3 * noise)
        else:
            weight.copy_(noise / weight.shape[1] ** 0.5)
