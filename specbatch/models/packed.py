"""Checkpoint → :class:`specbatch_kernels.cpu.PackedDecoder`: quantised blocks go in as they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from specbatch_kernels.cpu import (
    Activations,
    DecoderLayer,
    DecoderParts,
    PackedDecoder,
    PackedMatrix,
    Packer,
    WeightType,
)
from torch import Tensor

from specbatch.models.config import ModelConfig
from specbatch.models.rotary import rotary_table
from specbatch.models.stored import StoredTensor

KERNEL_KINDS: tuple[WeightType, ...] = ("q4_0", "q4_1", "q8_0")
"""Block formats the kernels multiply with directly; others are dequantised to float32."""


class PackedWeights:
    """A decoder's weights while they are packed by another thread, which needs no interpreter for that.

    Args:
        config: The model's shape.
        tensors: Its weights under Hugging Face names (checked by the loader).
        activations: What the inputs of quantised weights are multiplied as.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Iterable[tuple[str, StoredTensor]],
        activations: Activations = "int8",
    ) -> None:
        w, packer = dict(tensors), Packer(activations=activations)
        embedding = packed(packer, [w.pop("model.embed_tokens.weight")])
        head = embedding if config.tie_embeddings else packed(packer, [w.pop("lm_head.weight")])
        self._layers = [_layer(w, f"model.layers.{i}", packer) for i in range(config.num_layers)]
        self._parts = DecoderParts(
            embedding=embedding,
            head=head,
            final_norm=_vector(w.pop("model.norm.weight")),
            rotary=rotary_table(config),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            eps=config.rms_norm_eps,
        )
        thread = ThreadPoolExecutor(1)
        self._packing = thread.submit(packer.run)
        thread.shutdown(wait=False)

    def decoder(self, captured: tuple[int, ...] = ()) -> PackedDecoder:
        """The decoder, when all is packed.

        Args:
            captured: Layers whose inputs a pass reports.

        Raises:
            MemoryError: There was too little for packing.
        """
        self._packing.result()
        return PackedDecoder(self._layers, replace(self._parts, captured=captured))


def build_packed(
    config: ModelConfig,
    tensors: Iterable[tuple[str, StoredTensor]],
    captured: tuple[int, ...] = (),
    activations: Activations = "int8",
) -> PackedDecoder:
    """A decoder in one go; arguments as for :class:`PackedWeights`."""
    return PackedWeights(config, tensors, activations).decoder(captured)


def _layer(w: dict[str, StoredTensor], name: str, packer: Packer) -> DecoderLayer:
    """Take one layer's tensors out of ``w``, so that the unpacked copies can be freed."""

    def take(suffix: str) -> StoredTensor:
        return w.pop(f"{name}.{suffix}")

    def take_vector(suffix: str) -> Tensor | None:
        found = w.pop(f"{name}.{suffix}", None)
        return None if found is None else _vector(found)

    heads = ("q_proj", "k_proj", "v_proj")
    biases = [b for b in (take_vector(f"self_attn.{h}.bias") for h in heads) if b is not None]
    return DecoderLayer(
        input_norm=_vector(take("input_layernorm.weight")),
        qkv=packed(
            packer, [take(f"self_attn.{h}.weight") for h in heads], torch.cat(biases) if biases else None
        ),
        q_norm=take_vector("self_attn.q_norm.weight"),
        k_norm=take_vector("self_attn.k_norm.weight"),
        output=packed(packer, [take("self_attn.o_proj.weight")]),
        mlp_norm=_vector(take("post_attention_layernorm.weight")),
        gate_up=packed_gated(packer, take("mlp.gate_proj.weight"), take("mlp.up_proj.weight")),
        down=packed(packer, [take("mlp.down_proj.weight")]),
    )


def packed(packer: Packer, parts: list[StoredTensor], bias: Tensor | None = None) -> PackedMatrix:
    """One matrix from its parts, stacked by output; :meth:`specbatch_kernels.cpu.Packer.run` fills it in."""
    sources, kind = _same_kind(parts)
    matrix = packer.stacked(sources, kind, bias)
    _drop_copies(packer, kind)
    return matrix


def packed_gated(packer: Packer, gate: StoredTensor, up: StoredTensor) -> PackedMatrix:
    """The two matrices of a gated MLP; filled in as those of :func:`packed` are."""
    (gates, ups), kind = _same_kind([gate, up])
    matrix = packer.gated(gates, ups, kind)
    _drop_copies(packer, kind)
    return matrix


def _drop_copies(packer: Packer, kind: WeightType) -> None:
    """Pack at once what are copies of a stored tensor: all of a model's together are twice its size."""
    if kind == "f32":
        packer.run()


def _same_kind(parts: list[StoredTensor]) -> tuple[list[Tensor], WeightType]:
    """Sources in one format the kernels take: the blocks themselves where all have the same, or float32."""
    kinds = {None if part.kind is None else part.kind.name for part in parts}
    for kind in KERNEL_KINDS:
        if kinds == {kind}:
            return [part.data.contiguous() for part in parts], kind
    return [part.values().to(torch.float32).contiguous() for part in parts], "f32"


def _vector(tensor: StoredTensor) -> Tensor:
    return tensor.values().to(torch.float32).contiguous()
