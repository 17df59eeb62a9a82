"""The weights of a one-layer draft head (EAGLE-3, Li et al. 2025, section 3; 3.1 adds norms)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.packing import Activations, PackedMatrix, native_matrix, unpack

if TYPE_CHECKING:
    from specbatch_kernels.cpu import _native as _types


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """The matrices of a head; d is the width of the target and of the head.

    Attributes:
        embedding: [target vocabulary, d], usually the target's own.
        fc: features * d → d.
        qkv: 2 d → (num_heads + 2 * num_kv_heads) * head_dim, queries first.
        output: num_heads * head_dim → d.
        gate_up: Gated, d → intermediate.
        down: intermediate → d.
        lm_head: d → draft vocabulary.
    """

    embedding: PackedMatrix
    fc: PackedMatrix
    qkv: PackedMatrix
    output: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix
    lm_head: PackedMatrix


@dataclass(frozen=True, slots=True)
class HeadParts:
    """Everything else a head consists of, vectors float32.

    Attributes:
        feature_norms: [features, d] norm of each feature before fc, or None.
        joint_norm: [features * d] norm of all features together before fc, or None.
        embed_norm: [d], of the embedding.
        hidden_norm: [d], of the state.
        mlp_norm: [d], before the MLP.
        final_norm: [d], before the LM head.
        rotary: [max positions, 2, head_dim / 2]: cosines, then sines.
        target_ids: int64 [draft vocabulary] token of the target that a draft token stands for.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        eps: Of every norm.
        norm_output: Give back the normed state (EAGLE-3.1) instead of the plain one.
        norm_residual: Start the residual from the normed state.
    """

    feature_norms: torch.Tensor | None
    joint_norm: torch.Tensor | None
    embed_norm: torch.Tensor
    hidden_norm: torch.Tensor
    mlp_norm: torch.Tensor
    final_norm: torch.Tensor
    rotary: torch.Tensor
    target_ids: torch.Tensor
    num_heads: int
    num_kv_heads: int
    eps: float
    norm_output: bool
    norm_residual: bool

    def to(self, device: torch.device) -> HeadParts:
        """The same with its tensors on a device."""
        each, joint = self.feature_norms, self.joint_norm
        return replace(
            self,
            feature_norms=None if each is None else each.to(device),
            joint_norm=None if joint is None else joint.to(device),
            embed_norm=self.embed_norm.to(device),
            hidden_norm=self.hidden_norm.to(device),
            mlp_norm=self.mlp_norm.to(device),
            final_norm=self.final_norm.to(device),
            rotary=self.rotary.to(device),
            target_ids=self.target_ids.to(device),
        )


class PackedHead:
    """A draft head ready for :func:`draft_pass`; immutable.

    Args:
        matrices: Packed weights.
        parts: The rest of the head.

    Raises:
        KernelsUnavailableError: The extension was not compiled.
        ValueError: Shapes or types do not fit together.
    """

    def __init__(self, matrices: HeadMatrices, parts: HeadParts) -> None:
        native.require()
        from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

        self.matrices, self.parts = matrices, parts
        self.hidden = matrices.fc.rows
        self.features = matrices.fc.cols // self.hidden
        self.head_dim = 2 * parts.rotary.shape[2]
        self.inner = matrices.down.cols
        self._check(matrices, parts)
        sizes = (self.features, self.hidden, self.inner, parts.num_heads, parts.num_kv_heads)
        self._handle = _native.head_new(
            (
                native_matrix(matrices.embedding),
                native_matrix(matrices.fc),
                native_matrix(matrices.qkv),
                native_matrix(matrices.output),
                native_matrix(matrices.gate_up),
                native_matrix(matrices.down),
                native_matrix(matrices.lm_head),
            ),
            self._vectors(parts),
            (*sizes, self.head_dim, parts.rotary.shape[0]),
            (parts.norm_output, parts.norm_residual),
            parts.eps,
        )

    @property
    def handle(self) -> _types._Head:
        """The native head."""
        return self._handle

    @property
    def vocabulary(self) -> int:
        """Number of draft tokens."""
        return self.matrices.lm_head.rows

    def _check(self, matrices: HeadMatrices, parts: HeadParts) -> None:
        d, mixed = self.hidden, parts.num_heads * self.head_dim
        heads = mixed + 2 * parts.num_kv_heads * self.head_dim
        if parts.num_kv_heads < 1 or parts.num_heads % parts.num_kv_heads:
            raise ValueError(f"{parts.num_heads} query heads cannot share {parts.num_kv_heads} key heads")
        if parts.feature_norms is not None and parts.joint_norm is not None:
            raise ValueError("features are normed one by one or together, not both")
        for name, matrix, shape in (
            ("embedding", matrices.embedding, (matrices.embedding.rows, d)),
            ("fc", matrices.fc, (d, self.features * d)),
            ("qkv", matrices.qkv, (heads, 2 * d)),
            ("output", matrices.output, (d, mixed)),
            ("gate_up", matrices.gate_up, (2 * self.inner, d)),
            ("down", matrices.down, (d, self.inner)),
            ("lm_head", matrices.lm_head, (matrices.lm_head.rows, d)),
        ):
            if (matrix.rows, matrix.cols) != shape or matrix.gated != (name == "gate_up"):
                found = f"{'gated ' if matrix.gated else ''}{(matrix.rows, matrix.cols)}"
                raise ValueError(f"{name}: expected a matrix of shape {shape}, got {found}")

    def _vectors(self, parts: HeadParts) -> tuple[int, ...]:
        d, f32 = self.hidden, torch.float32
        each, joint = parts.feature_norms, parts.joint_norm
        return (
            0 if each is None else native.address("feature_norms", each, f32, (self.features, d)),
            0 if joint is None else native.address("joint_norm", joint, f32, (self.features * d,)),
            native.address("embed_norm", parts.embed_norm, f32, (d,)),
            native.address("hidden_norm", parts.hidden_norm, f32, (d,)),
            native.address("mlp_norm", parts.mlp_norm, f32, (d,)),
            native.address("final_norm", parts.final_norm, f32, (d,)),
            native.address("rotary", parts.rotary, f32, (None, 2, None)),
            native.address("target_ids", parts.target_ids, torch.int64, (self.vocabulary,)),
        )


@dataclass(frozen=True, slots=True)
class DenseHead:
    """A head with plain weights, on any device: what the torch twin computes with.

    Attributes:
        embedding: [target vocabulary, d].
        fc: [d, features * d].
        qkv: [(num_heads + 2 * num_kv_heads) * head_dim, 2 d].
        output: [d, num_heads * head_dim].
        gate_up: [2 * intermediate, d], gate first.
        down: [d, intermediate].
        lm_head: [draft vocabulary, d].
        parts: The rest of the head.
        activations: What all inputs are multiplied as.
    """

    embedding: torch.Tensor
    fc: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    lm_head: torch.Tensor
    parts: HeadParts
    activations: Activations = "float32"

    @classmethod
    def unpacked(cls, head: PackedHead) -> DenseHead:
        """The exact weights of a packed head."""
        m = head.matrices
        return cls(
            embedding=unpack(m.embedding),
            fc=unpack(m.fc),
            qkv=unpack(m.qkv),
            output=unpack(m.output),
            gate_up=unpack(m.gate_up),
            down=unpack(m.down),
            lm_head=unpack(m.lm_head),
            parts=head.parts,
            activations=m.fc.activations,
        )
