"""Checkpoint → :class:`specbatch_kernels.cpu.PackedDecoder`: quantised blocks go in as they are stored."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from specbatch_kernels.cpu import (
    DecoderLayer,
    DecoderParts,
    PackedDecoder,
    PackedMatrix,
    WeightArena,
    WeightType,
    pack,
    pack_gated,
)
from torch import Tensor

from specbatch.models.config import ModelConfig
from specbatch.models.rotary import rotary_table
from specbatch.models.stored import StoredTensor

KERNEL_KINDS: tuple[WeightType, ...] = ("q4_0", "q4_1", "q8_0")
"""Block formats the kernels multiply with directly; others are dequantised to float32."""


def build_packed(
    config: ModelConfig, tensors: Iterable[tuple[str, StoredTensor]], captured: tuple[int, ...] = ()
) -> PackedDecoder:
    """Assemble a decoder from tensors with Hugging Face names (checked by the loader).

    Args:
        config: The model's shape.
        tensors: Its weights.
        captured: Layers whose inputs a pass reports.
    """
    w, arena = dict(tensors), WeightArena()
    embedding = pack_stacked([w.pop("model.embed_tokens.weight")], arena)
    head = embedding if config.tie_embeddings else pack_stacked([w.pop("lm_head.weight")], arena)
    layers = [_layer(w, f"model.layers.{i}", arena) for i in range(config.num_layers)]
    parts = DecoderParts(
        embedding=embedding,
        head=head,
        final_norm=_vector(w.pop("model.norm.weight")),
        rotary=rotary_table(config),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        eps=config.rms_norm_eps,
        captured=captured,
    )
    return PackedDecoder(layers, parts)


def _layer(w: dict[str, StoredTensor], name: str, arena: WeightArena) -> DecoderLayer:
    """Take one layer's tensors out of ``w``, so that the unpacked copies can be freed."""

    def take(suffix: str) -> StoredTensor:
        return w.pop(f"{name}.{suffix}")

    def take_vector(suffix: str) -> Tensor | None:
        found = w.pop(f"{name}.{suffix}", None)
        return None if found is None else _vector(found)

    heads = ("q_proj", "k_proj", "v_proj")
    biases = [b for b in (take_vector(f"self_attn.{h}.bias") for h in heads) if b is not None]
    (gate, up), kind = same_kind([take("mlp.gate_proj.weight"), take("mlp.up_proj.weight")])
    return DecoderLayer(
        input_norm=_vector(take("input_layernorm.weight")),
        qkv=pack_stacked(
            [take(f"self_attn.{h}.weight") for h in heads], arena, torch.cat(biases) if biases else None
        ),
        q_norm=take_vector("self_attn.q_norm.weight"),
        k_norm=take_vector("self_attn.k_norm.weight"),
        output=pack_stacked([take("self_attn.o_proj.weight")], arena),
        mlp_norm=_vector(take("post_attention_layernorm.weight")),
        gate_up=pack_gated(gate, up, kind, arena=arena),
        down=pack_stacked([take("mlp.down_proj.weight")], arena),
    )


def pack_stacked(parts: list[StoredTensor], arena: WeightArena, bias: Tensor | None = None) -> PackedMatrix:
    """One matrix from its parts, stacked by output."""
    sources, kind = same_kind(parts)
    return pack(sources[0] if len(sources) == 1 else torch.cat(sources), kind, bias, arena=arena)


def same_kind(parts: list[StoredTensor]) -> tuple[list[Tensor], WeightType]:
    """Sources in one format the kernels take: the blocks themselves where all have the same, or float32."""
    kinds = {None if part.kind is None else part.kind.name for part in parts}
    for kind in KERNEL_KINDS:
        if kinds == {kind}:
            return [part.data.contiguous() for part in parts], kind
    return [part.values().to(torch.float32).contiguous() for part in parts], "f32"


def _vector(tensor: StoredTensor) -> Tensor:
    return tensor.values().to(torch.float32).contiguous()
