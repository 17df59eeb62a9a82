"""Small random heads, and what a head computes spelt out: one entry after another, in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbatch.draft.base import TreeShape
from specbatch.draft.head_weights import HeadConfig, HeadWeights
from specbatch.models.config import ModelConfig
from specbatch.models.rotary import rotary_table, rotate
from specbatch.models.stored import StoredTensor
from specbatch.randomness import Stream, gumbel

VOCABULARY = 40

TARGET = ModelConfig(
    architecture="llama",
    hidden_size=32,
    intermediate_size=64,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=VOCABULARY,
    max_context=96,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    sliding_window=None,
    eos_ids=frozenset({2}),
)

CONFIG = HeadConfig(
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=64,
    draft_vocab=24,
    captured=(0, 2, 3),
    eps=1e-5,
    rope_theta=500.0,
    target_digest="f" * 64,
    target_name="tiny",
)


def random_head(config: HeadConfig = CONFIG, vocab_size: int = VOCABULARY, seed: int = 0) -> HeadWeights:
    """Weights of about unit gain, norms that are not trivial, a draft vocabulary with gaps."""
    generator = torch.Generator().manual_seed(seed)

    def values(shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1.0 + 0.2 * noise if len(shape) == 1 else 2.0 * noise / math.sqrt(shape[1])

    tensors = {name: StoredTensor(values(shape)) for name, shape in config.shapes.items()}
    ids = torch.randperm(vocab_size, generator=generator)[: config.draft_vocab].sort().values
    return HeadWeights(config, tensors, ids)


def random_embedding(vocab_size: int = VOCABULARY, hidden: int = 32) -> Tensor:
    """The target's token embedding."""
    return torch.randn((vocab_size, hidden), generator=torch.Generator().manual_seed(5))


Keys = list[tuple[Tensor, Tensor]]


class SpeltOut:
    """A head that recomputes a whole row for every question."""

    def __init__(self, weights: HeadWeights, embedding: Tensor, target: ModelConfig = TARGET) -> None:
        self.config, self.ids = weights.config, weights.target_ids
        self._w = {name: weights.tensors[name].values().double() for name in weights.tensors}
        self._embedding = embedding.double()
        turned = replace(
            target,
            head_dim=self.config.head_dim,
            rope_theta=self.config.rope_theta,
            rope_scaling=self.config.rope_scaling,
        )
        self._rotary = rotary_table(turned).double()

    def read(
        self, text: Sequence[int], features: Tensor, leading: Tensor | None = None
    ) -> tuple[Tensor, Keys]:
        """State behind the last token of ``text``, and the keys and values of all of them.

        Args:
            text: Committed tokens.
            features: Of all of them but the last; ``[len(text) - 1, F, hidden]``.
            leading: Of a token before them all, ``[F, hidden]``; zeros by default.
        """
        first = torch.zeros(features.shape[1:]) if leading is None else leading
        before = torch.cat((first[None], features)).double()
        keys: Keys = []
        x = torch.empty(0)
        for position, (token, row) in enumerate(zip(text, before, strict=True)):
            x = self._entry(position, token, self._fused(row), keys)
        return x, keys

    def step(self, x: Tensor, token: int, keys: Keys) -> tuple[Tensor, Keys]:
        """The same one drafted token further."""
        keys = list(keys)
        given_back = self._norm(x, "norm.weight") if self.config.norm_output else x
        return self._entry(len(keys), token, given_back, keys), keys

    def logits(self, x: Tensor) -> Tensor:
        """Over the draft vocabulary."""
        return self._w["lm_head.weight"] @ self._norm(x, "norm.weight")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean() + self.config.eps).sqrt() * self._w[name]

    def _fused(self, features: Tensor) -> Tensor:
        if self.config.feature_norm == "each":
            normed = [self._norm(feature, f"feature_norms.{i}.weight") for i, feature in enumerate(features)]
            features = torch.stack(normed)
        flat = features.flatten()
        if self.config.feature_norm == "joint":
            flat = self._norm(flat, "input_norm.weight")
        return self._w["fc.weight"] @ flat

    def _entry(self, position: int, token: int, state: Tensor, keys: Keys) -> Tensor:
        config, attention, mlp = self.config, "midlayer.self_attn", "midlayer.mlp"
        normed = self._norm(state, "midlayer.hidden_norm.weight")
        pair = torch.cat((self._norm(self._embedding[token], "midlayer.input_layernorm.weight"), normed))
        q, k, v = (
            (self._w[f"{attention}.{p}_proj.weight"] @ pair).view(1, -1, config.head_dim) for p in "qkv"
        )
        turn = self._rotary[position : position + 1]
        keys.append((rotate(k, turn)[0], v[0]))
        group = config.heads // config.kv_heads
        all_k, all_v = (torch.stack(part).repeat_interleave(group, dim=1) for part in zip(*keys, strict=True))
        scores = torch.einsum("hd,khd->hk", rotate(q, turn)[0].double(), all_k.double())
        shares = (scores * config.head_dim**-0.5).softmax(-1)
        mixed = torch.einsum("hk,khd->hd", shares, all_v).flatten()
        x = (normed if config.norm_before_residual else state) + self._w[f"{attention}.o_proj.weight"] @ mixed
        inner = self._norm(x, "midlayer.post_attention_layernorm.weight")
        gate, up = (self._w[f"{mlp}.{p}_proj.weight"] @ inner for p in ("gate", "up"))
        return x + self._w[f"{mlp}.down_proj.weight"] @ (silu(gate) * up)

    def tree(
        self,
        text: Sequence[int],
        features: Tensor,
        shape: TreeShape,
        temperature: float,
        stream: Stream,
        leading: Tensor | None = None,
    ) -> dict[tuple[int, ...], float]:
        """Path → log probability of its last token, of every node of the tree that should be proposed."""
        behind: dict[tuple[int, ...], tuple[Tensor, Keys]] = {(): self.read(text, features, leading)}
        merits: dict[tuple[int, ...], float] = {(): 0.0}
        log_probs: dict[tuple[int, ...], float] = {}
        frontier: list[tuple[int, ...]] = [()]
        for depth in range(shape.levels):
            level: list[tuple[int, ...]] = []
            for path in frontier:
                if path:
                    x, keys = behind[path[:-1]]
                    behind[path] = self.step(x, path[-1], keys)
                own = torch.log_softmax(self.logits(behind[path][0]) / (temperature or 1.0), -1)
                scores = own
                if temperature > 0:
                    scores = own + gumbel(stream, len(text) + depth, self.ids)
                best = scores.topk(min(shape.width, len(scores))).indices
                shares = torch.log_softmax(scores[best], -1) if temperature > 0 else own[best]
                for index, share in zip(best.tolist(), shares.tolist(), strict=True):
                    child = (*path, int(self.ids[index]))
                    merits[child] = merits[path] + share
                    log_probs[child] = float(own[index])
                    level.append(child)
            frontier = sorted(level, key=lambda node: -merits[node])[: shape.width]
        kept = sorted(log_probs, key=lambda node: -merits[node])[: shape.nodes]
        return {node: log_probs[node] for node in kept}
