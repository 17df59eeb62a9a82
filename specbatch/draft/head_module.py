"""The draft head as a torch network with gradients: what training changes and inference packs.

Its parameters have the names of the EAGLE checkpoints. A head reads *entries*: entry p of a text is
made of the token at position p and of the target's features at position p - 1 (nothing, at p = 0), and
its output predicts the token at position p + 1. Along a drafted chain the head's own output takes
the place of the features (EAGLE-3, Li et al. 2025, section 3; normed in 3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from specbatch.draft.head_config import HeadConfig
from specbatch.models.rotary import rotate


class _Norm(nn.Module):
    """RMSNorm (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = _Norm(config.hidden, config.eps)
        self.hidden_norm = _Norm(config.hidden, config.eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(config.hidden, config.eps)
        self.mlp = _Mlp(config)


class HeadModule(nn.Module):
    """An EAGLE-3.1 head (``feature_norm = "each"``, ``norm_output``, residual before the norm).

    Args:
        config: Shape and constants.
        embedding: The target's, float32 ``[vocab, hidden]``; not trained.
        rotary: float32 ``[positions, 2, head_dim / 2]``, :func:`specbatch.models.rotary.rotary_table`.
    """

    def __init__(self, config: HeadConfig, embedding: Tensor, rotary: Tensor) -> None:
        super().__init__()
        self.config = config
        self._heads = config.heads + 2 * config.kv_heads
        features = len(config.captured)
        self.feature_norms = nn.ModuleList(_Norm(config.hidden, config.eps) for _ in range(features))
        self.fc = nn.Linear(features * config.hidden, config.hidden, bias=False)
        self.midlayer = _Layer(config)
        self.norm = _Norm(config.hidden, config.eps)
        self.lm_head = nn.Linear(config.hidden, config.draft_vocab, bias=False)
        self.embedding: Tensor
        self.rotary: Tensor
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("rotary", rotary, persistent=False)

    def fuse(self, features: Tensor) -> Tensor:
        """``[T, F, hidden]`` features → ``[T, hidden]``."""
        normed = [norm(features[:, i]) for i, norm in enumerate(self.feature_norms)]
        return self.fc(torch.cat(normed, dim=1))  # type: ignore[no-any-return]

    def embed(self, tokens: Tensor) -> Tensor:
        """What tokens add to queries, keys and values: ``[T]`` → ``[T, (heads + 2 kv_heads) * head_dim]``."""
        normed = self.midlayer.input_layernorm(self.embedding[tokens])
        embedded: Tensor = normed @ self._projections()[:, : self.config.hidden].T
        return embedded

    def heads(self, embedded: Tensor, fused: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of entries.

        Args:
            embedded: :meth:`embed` of their tokens; along a chain it is the same at every step.
            fused: Fused features, or the outputs fed back, ``[T, hidden]``.
            positions: int64 ``[T]``.

        Returns:
            ``[T, heads, head_dim]`` and twice ``[T, kv_heads, head_dim]``; queries and keys rotated.
        """
        config = self.config
        normed = self.midlayer.hidden_norm(fused)
        mixed = torch.addmm(embedded, normed, self._projections()[:, config.hidden :].T)
        q, k, v = mixed.view(len(mixed), self._heads, config.head_dim).split_with_sizes(
            [config.heads, config.kv_heads, config.kv_heads], dim=1
        )
        rotary = self.rotary[positions]
        return rotate(q, rotary), rotate(k, rotary), v

    def _projections(self) -> Tensor:
        """Weights of queries, keys and values: one product instead of three."""
        attention = self.midlayer.self_attn
        return torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])

    def finish(self, fused: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention: ``[T, hidden]``, normed, as the LM head reads it and as it is fed back.

        Args:
            fused: As given to :meth:`heads`.
            mixed: Output of attention, ``[T, heads * head_dim]``.
        """
        layer = self.midlayer
        x = fused + layer.self_attn.o_proj(mixed)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)  # type: ignore[no-any-return]
