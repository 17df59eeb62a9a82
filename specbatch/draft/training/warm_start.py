"""A head to begin with: what can be taken from the target is taken from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specbatch.draft.head_config import HeadConfig, default_captured
from specbatch.draft.head_module import HeadModule
from specbatch.draft.head_weights import HeadWeights
from specbatch.draft.training.batch import Example
from specbatch.draft.training.loss import Teacher
from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.rotary import rotary_table
from specbatch.models.weights import load_weights

_SAMPLED = 64


def head_config(files: ModelFiles, target: ModelConfig, draft_vocab: int) -> HeadConfig:
    """A head as wide as one layer of the target."""
    return HeadConfig(
        hidden=target.hidden_size,
        heads=target.num_heads,
        kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate=target.intermediate_size,
        draft_vocab=draft_vocab,
        captured=default_captured(target.num_layers),
        eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        rope_scaling=target.rope_scaling,
        target_digest=files.digest,
        target_name=files.name,
    )


def needed_weights(files: ModelFiles, target: ModelConfig) -> dict[str, Tensor]:
    """The target's embedding, LM head, final norm and last layer, float32."""
    last = f"model.layers.{target.num_layers - 1}."
    outer = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    kept = {
        name: tensor.to(torch.float32)
        for name, tensor in load_weights(files, target, None)
        if name in outer or name.startswith(last)
    }
    kept.setdefault("lm_head.weight", kept["model.embed_tokens.weight"])
    return {name.replace(last, "last."): tensor for name, tensor in kept.items()}


def make_teacher(weights: Mapping[str, Tensor], target: ModelConfig, target_ids: Tensor) -> Teacher:
    """The target's output over the draft vocabulary."""
    head = weights["lm_head.weight"][target_ids].contiguous()
    return Teacher(weights["model.norm.weight"], target.rms_norm_eps, head)


def new_module(
    config: HeadConfig,
    target: ModelConfig,
    weights: Mapping[str, Tensor],
    target_ids: Tensor,
    seed: int,
) -> HeadModule:
    """A head before training.

    LM head and last norm are the target's own; so are the MLP and what attention does with hidden
    states, from the target's last layer. Everything that reads embeddings begins small and random.
    """
    module = HeadModule(config, weights["model.embed_tokens.weight"], rotary_table(target))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.02, generator=generator)
        module.lm_head.weight.copy_(weights["lm_head.weight"][target_ids])
        module.norm.weight.copy_(weights["model.norm.weight"])
        _take_last_layer(module, weights)
    return module


def _take_last_layer(module: HeadModule, weights: Mapping[str, Tensor]) -> None:
    layer, hidden = module.midlayer, module.config.hidden
    layer.hidden_norm.weight.copy_(weights["last.input_layernorm.weight"])
    layer.post_attention_layernorm.weight.copy_(weights["last.post_attention_layernorm.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(layer.self_attn, name)
        projection.weight[:, hidden:].copy_(weights[f"last.self_attn.{name}.weight"])
    layer.self_attn.o_proj.weight.copy_(weights["last.self_attn.o_proj.weight"])
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(weights[f"last.mlp.{name}.weight"])


def pass_last_feature(module: HeadModule, examples: Sequence[Example]) -> None:
    """Let ``fc`` begin by passing on the last feature, at the size it usually has."""
    sample = np.concatenate([example.states[1:, -2] for example in examples[:_SAMPLED]]).astype(np.float32)
    size = float(np.median(np.sqrt((sample**2).mean(axis=1))))
    hidden = module.config.hidden
    with torch.no_grad():
        module.fc.weight[:, -hidden:] += size * torch.eye(hidden)


def take_head(module: HeadModule, weights: HeadWeights) -> None:
    """Give a module the weights of a head.

    Raises:
        ModelError: The head has another shape.
    """
    shapes = module.config.shapes
    if weights.config.shapes != shapes:
        raise ModelError(
            "the head to begin with has another shape than one for this model", "begin with none"
        )
    with torch.no_grad():
        for name in shapes:
            module.get_parameter(name).copy_(weights.values(name))
