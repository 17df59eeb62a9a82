"""The decoder of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3): tokens in, logits out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbatch.attention.base import Attention, AttentionPass
from specbatch.cache import KVStore
from specbatch.models.config import ModelConfig
from specbatch.models.linear import Linear, LinearFactory
from specbatch.models.rotary import rotary_table, rotate
from specbatch.step import PassOutput, Step


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; projections that read the same input are one matrix.

    Attributes:
        qkv: hidden → query, key and value heads.
        q_norm: Per-head norm weight ``[head_dim]``, Qwen3 only.
    """

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model with its weights.

    Attributes:
        embedding: ``[vocab, hidden]``.
        rotary: :func:`specbatch.models.rotary.rotary_table`.
        head: hidden → vocab.
        captured: Layers whose inputs a pass reports, in that order; the number of layers stands for
            the input of the final norm.
    """

    config: ModelConfig
    embedding: Tensor
    rotary: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Linear
    captured: tuple[int, ...] = ()

    def forward(self, step: Step, store: KVStore, attention: Attention) -> PassOutput:
        """One target pass.

        Args:
            step: The tokens; their keys and values are written to the store.
            store: K/V of all layers.
            attention: The kernel.
        """
        attend = attention.prepare(step)
        rotary = self.rotary[step.positions]
        x = self.embedding[step.tokens]
        inputs = {0: x}
        for number, layer in enumerate(self.layers):
            x = x + self._attention(number, layer, x, (step, store, attend, rotary))
            x = x + self._mlp(layer, x)
            if number + 1 in self.captured:
                inputs[number + 1] = x
        wanted = rms_norm(x[step.wanted], self.final_norm, self.config.rms_norm_eps)
        logits = self.head(wanted).float()
        if not self.captured:
            return PassOutput(logits)
        features = torch.stack([inputs[i] for i in self.captured]).float()
        return PassOutput(logits, features.cpu().numpy())

    def _attention(
        self, number: int, layer: Layer, x: Tensor, at: tuple[Step, KVStore, AttentionPass, Tensor]
    ) -> Tensor:
        """``[T, hidden]`` → ``[T, hidden]``; writes keys and values first, then reads them."""
        step, store, attend, rotary = at
        config = self.config
        heads = layer.qkv(rms_norm(x, layer.input_norm, config.rms_norm_eps))
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        q, k, v = heads.view(x.shape[0], -1, config.head_dim).split_with_sizes(sizes, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
        store.write(number, step.slots, rotate(k, rotary), v)
        mixed = attend(rotate(q, rotary), store.keys[number], store.values[number])
        return layer.output(mixed.flatten(1))

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps)).chunk(2, dim=-1)
        return layer.down(silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang & Sennrich 2019) over the last axis, in float32 inside."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def layer_shapes(config: ModelConfig) -> set[tuple[int, int]]:
    """``(out_features, in_features)`` of every matrix, fused as :class:`Decoder` fuses them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    return {
        (heads + 2 * kv_heads, hidden),
        (hidden, heads),
        (2 * inner, hidden),
        (hidden, inner),
        (config.vocab_size, hidden),
    }


def build_decoder(
    config: ModelConfig,
    weights: Iterable[tuple[str, Tensor]],
    make_linear: LinearFactory,
    dtype: torch.dtype,
    device: torch.device,
    captured: tuple[int, ...] = (),
) -> Decoder:
    """Assemble a decoder from tensors with Hugging Face names (checked by the loader).

    Args:
        config: The model's shape.
        weights: Its tensors.
        make_linear: How matrices are multiplied.
        dtype: Number format of the computation.
        device: Where it runs.
        captured: Layers whose inputs a pass reports.
    """
    w = {name: tensor.to(device=device, dtype=dtype) for name, tensor in weights}
    embedding = w["model.embed_tokens.weight"]
    head = embedding if config.tie_embeddings else w.pop("lm_head.weight")
    return Decoder(
        config=config,
        embedding=embedding,
        rotary=rotary_table(config).to(device),
        layers=tuple(_build_layer(w, f"model.layers.{i}", make_linear) for i in range(config.num_layers)),
        final_norm=w["model.norm.weight"],
        head=make_linear(head, None),
        captured=captured,
    )


def _build_layer(w: dict[str, Tensor], name: str, make_linear: LinearFactory) -> Layer:
    """Take one layer's tensors out of ``w``, so that the unpacked copies can be freed."""

    def fused(block: str, projections: tuple[str, ...]) -> Linear:
        weights = [w.pop(f"{name}.{block}.{p}.weight") for p in projections]
        biases = [w.pop(f"{name}.{block}.{p}.bias", None) for p in projections]
        present = [bias for bias in biases if bias is not None]
        return make_linear(torch.cat(weights), torch.cat(present) if present else None)

    return Layer(
        input_norm=w.pop(f"{name}.input_layernorm.weight"),
        qkv=fused("self_attn", ("q_proj", "k_proj", "v_proj")),
        q_norm=w.pop(f"{name}.self_attn.q_norm.weight", None),
        k_norm=w.pop(f"{name}.self_attn.k_norm.weight", None),
        output=fused("self_attn", ("o_proj",)),
        mlp_norm=w.pop(f"{name}.post_attention_layernorm.weight"),
        gate_up=fused("mlp", ("gate_proj", "up_proj")),
        down=fused("mlp", ("down_proj",)),
    )
