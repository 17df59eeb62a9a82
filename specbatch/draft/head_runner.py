"""A draft head made ready to compute: through the compiled kernels, or through torch on any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from specbatch_kernels.cpu import (
    DenseHead,
    DraftBatch,
    DraftOutputs,
    HeadMatrices,
    HeadParts,
    KvCache,
    PackedHead,
    PackedMatrix,
    Packer,
    ThreadPool,
    draft_pass,
    draft_pass_dense,
)
from torch import Tensor

from specbatch.draft.head_weights import HeadConfig, HeadWeights
from specbatch.models.config import ModelConfig
from specbatch.models.packed import packed, packed_gated
from specbatch.models.rotary import rotary_table
from specbatch.models.stored import StoredTensor


class HeadRunner(Protocol):
    """Computes draft passes."""

    @property
    def config(self) -> HeadConfig:
        """Shape of the head."""
        ...

    @property
    def positions(self) -> int:
        """Positions that an entry can stand at."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its keys and values live."""
        ...

    def run(self, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
        """One pass, from tensors on the CPU to tensors on the CPU; the cache is on ``device``."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledHead:
    """The compiled kernels."""

    config: HeadConfig
    head: PackedHead
    pool: ThreadPool

    @property
    def positions(self) -> int:
        """Positions that an entry can stand at."""
        return self.head.parts.rotary.shape[0]

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def run(self, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
        """One pass; see :func:`specbatch_kernels.cpu.draft_pass`."""
        draft_pass(self.head, batch, cache, outputs, self.pool)


@dataclass(frozen=True, slots=True)
class TorchHead:
    """Plain torch: slow on a CPU, and works on every device."""

    config: HeadConfig
    head: DenseHead

    @property
    def positions(self) -> int:
        """Positions that an entry can stand at."""
        return self.head.parts.rotary.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.fc.device

    @torch.inference_mode()
    def run(self, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
        """One pass; see :func:`specbatch_kernels.cpu.draft_pass`."""
        draft_pass_dense(self.head, batch, cache, outputs)


def compile_head(
    weights: HeadWeights, target: ModelConfig, embedding: PackedMatrix, pool: ThreadPool
) -> CompiledHead:
    """Pack a head for the compiled kernels.

    Args:
        weights: The head.
        target: The model it drafts for.
        embedding: The target's token embedding, used unless the head has its own; the head's inputs are
            rounded as its are.
        pool: Threads to compute with, those of the target.
    """
    packer = Packer(activations=embedding.activations)

    def matrix(*names: str) -> PackedMatrix:
        return packed(packer, [weights.tensors[name] for name in names])

    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    gate, up = (weights.tensors[f"{mlp}.{part}_proj.weight"] for part in ("gate", "up"))
    matrices = HeadMatrices(
        embedding=embedding if weights.embedding is None else packed(packer, [weights.embedding]),
        fc=matrix("fc.weight"),
        qkv=matrix(*(f"{attention}.{p}_proj.weight" for p in ("q", "k", "v"))),
        output=matrix(f"{attention}.o_proj.weight"),
        gate_up=packed_gated(packer, gate, up),
        down=matrix(f"{mlp}.down_proj.weight"),
        lm_head=matrix("lm_head.weight"),
    )
    packer.run()
    return CompiledHead(weights.config, PackedHead(matrices, _parts(weights, target)), pool)


def torch_head(weights: HeadWeights, target: ModelConfig, embedding: Tensor) -> TorchHead:
    """Unpack a head for torch.

    Args:
        weights: The head.
        target: The model it drafts for.
        embedding: The target's token embedding ``[vocab, hidden]``, used unless the head has its own;
            where it lives is where the head will compute, in float32.
    """
    device = embedding.device

    def matrix(*names: str) -> Tensor:
        return torch.cat([weights.values(name) for name in names]).to(device)

    own = weights.embedding
    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    return TorchHead(
        weights.config,
        DenseHead(
            embedding=embedding if own is None else own.values().to(device, torch.float32),
            fc=matrix("fc.weight"),
            qkv=matrix(*(f"{attention}.{p}_proj.weight" for p in ("q", "k", "v"))),
            output=matrix(f"{attention}.o_proj.weight"),
            gate_up=matrix(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            down=matrix(f"{mlp}.down_proj.weight"),
            lm_head=matrix("lm_head.weight"),
            parts=_parts(weights, target).to(device),
        ),
    )


def _parts(weights: HeadWeights, target: ModelConfig) -> HeadParts:
    """Norms, rotary table and constants, on the CPU."""
    config = weights.config
    turned = replace(
        target,
        head_dim=config.head_dim,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
    )
    return HeadParts(
        feature_norms=_feature_norms(weights.tensors, config),
        joint_norm=weights.values("input_norm.weight") if config.feature_norm == "joint" else None,
        embed_norm=weights.values("midlayer.input_layernorm.weight"),
        hidden_norm=weights.values("midlayer.hidden_norm.weight"),
        mlp_norm=weights.values("midlayer.post_attention_layernorm.weight"),
        final_norm=weights.values("norm.weight"),
        rotary=rotary_table(turned),
        target_ids=weights.target_ids.contiguous(),
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        eps=config.eps,
        norm_output=config.norm_output,
        norm_residual=config.norm_before_residual,
    )


def _feature_norms(tensors: Mapping[str, StoredTensor], config: HeadConfig) -> Tensor | None:
    """``[F, d]``, or ``None`` where features are not normed one by one."""
    if config.feature_norm != "each":
        return None
    names = [f"feature_norms.{i}.weight" for i in range(len(config.captured))]
    return torch.stack([tensors[name].values().to(torch.float32) for name in names])
