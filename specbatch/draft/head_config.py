"""What an EAGLE-3 draft head looks like: from a published ``config.json`` or from our own metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig, RopeScaling, read_json

FeatureNorm = Literal["none", "each", "joint"]
"""Norm before ``fc``: none (EAGLE-3), one for each feature (3.1), or one over all of them together."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class HeadConfig:
    """Shape and constants of a one-layer head on the features of a target.

    Attributes:
        hidden: Width of the target's residual stream and of the head's, d.
        heads: Query heads.
        kv_heads: Key/value heads; divides ``heads``.
        head_dim: Width of one head.
        intermediate: Width of the gated MLP.
        draft_vocab: Tokens the head can propose.
        captured: Target layers whose inputs are the features, F of them; the number of layers itself
            stands for the input of the final norm.
        eps: Added to the mean square in every RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Stretching of the frequencies, ``None`` when there is none.
        feature_norm: ``each`` in EAGLE-3.1.
        norm_output: Whether the next draft level is fed the normed state (3.1) or the plain one (3).
        norm_before_residual: Whether the residual stream starts from the normed input.
        target_digest: Digest of the target's weights; empty when unknown.
        target_name: Alias of the target, for people.
    """

    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    intermediate: PositiveInt
    draft_vocab: PositiveInt
    captured: tuple[int, ...]
    eps: PositiveFloat
    rope_theta: PositiveFloat
    rope_scaling: RopeScaling | None = None
    feature_norm: FeatureNorm = "each"
    norm_output: bool = True
    norm_before_residual: bool = False
    target_digest: str = ""
    target_name: str = ""

    @property
    def variant(self) -> Literal["eagle3", "eagle3.1"]:
        """Which published form it follows: 3.1 norms features and feedback."""
        return "eagle3.1" if self.norm_output or self.feature_norm != "none" else "eagle3"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name → shape in values of everything a head consists of, ``d2t`` excepted."""
        d, inner, features = self.hidden, self.intermediate, len(self.captured)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms: dict[str, tuple[int, ...]] = {}
        if self.feature_norm == "each":
            norms = {f"feature_norms.{i}.weight": (d,) for i in range(features)}
        if self.feature_norm == "joint":
            norms = {"input_norm.weight": (features * d,)}
        return norms | {
            "fc.weight": (d, features * d),
            "midlayer.input_layernorm.weight": (d,),
            "midlayer.hidden_norm.weight": (d,),
            "midlayer.self_attn.q_proj.weight": (queries, 2 * d),
            "midlayer.self_attn.k_proj.weight": (keys, 2 * d),
            "midlayer.self_attn.v_proj.weight": (keys, 2 * d),
            "midlayer.self_attn.o_proj.weight": (d, queries),
            "midlayer.post_attention_layernorm.weight": (d,),
            "midlayer.mlp.gate_proj.weight": (inner, d),
            "midlayer.mlp.up_proj.weight": (inner, d),
            "midlayer.mlp.down_proj.weight": (d, inner),
            "norm.weight": (d,),
            "lm_head.weight": (self.draft_vocab, d),
        }

    def check(self, target: ModelConfig, where: Path) -> None:
        """Refuse a head that was made for another target.

        Raises:
            ModelError: Width, layers or vocabulary do not fit the target.
        """
        problem = ""
        if self.hidden != target.hidden_size:
            problem = f"reads features of width {self.hidden}, the model's are {target.hidden_size} wide"
        elif not self.captured or not all(0 <= layer <= target.num_layers for layer in self.captured):
            problem = f"reads layers {list(self.captured)}, the model has {target.num_layers}"
        elif self.draft_vocab > target.vocab_size:
            problem = f"proposes {self.draft_vocab} tokens, the model has {target.vocab_size}"
        elif self.heads % self.kv_heads or self.head_dim % 2:
            problem = f"has {self.heads} heads of {self.head_dim} for {self.kv_heads} K/V heads"
        if problem:
            raise ModelError(f"the draft head {where} {problem}", "use the head that belongs to this model")


class _Rope(BaseModel):
    """``rope_scaling`` or, in newer checkpoints, ``rope_parameters``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    rope_type: str | None = None
    type: str | None = None
    rope_theta: PositiveFloat | None = None
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 1.0
    original_max_position_embeddings: int = 0

    def scaling(self, where: Path) -> RopeScaling | None:
        """The stretching it stands for."""
        kind = self.rope_type or self.type or "default"
        if kind == "default":
            return None
        if kind == "linear":
            return RopeScaling("linear", self.factor)
        if kind == "llama3":
            return RopeScaling(
                "llama3",
                self.factor,
                self.low_freq_factor,
                self.high_freq_factor,
                self.original_max_position_embeddings,
            )
        raise ModelError(f"{where}: rope scaling {kind!r} is not supported, only linear and llama3")


class _Layer(BaseModel):
    """The decoder layer of a published head; keys as in transformers."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt
    num_hidden_layers: Literal[1] = 1
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None


class _Published(BaseModel):
    """What the families of EAGLE-3 checkpoints write into ``config.json`` beside the layer.

    SpecForge and the authors keep the layer's keys at the top, speculators under
    ``transformer_layer_config``. The flags are those of vLLM's ``llama_eagle3.py``.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    draft_vocab_size: PositiveInt
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    eagle_config: dict[str, Any] | None = None


def read_published(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read the ``config.json`` of a published checkpoint.

    Raises:
        ModelError: It is missing or malformed, or describes something that is not such a head.
    """
    where = directory / "config.json"
    values = read_json(where)
    try:
        layer = _Layer.model_validate(values.get("transformer_layer_config", values))
        head = _Published.model_validate(values)
    except ValidationError as error:
        raise ModelError(
            f"{where} does not describe an EAGLE-3 head: {describe(error)}",
            "an EAGLE-3 checkpoint has one layer, draft_vocab_size and silu",
        ) from error
    if head.fc_norm and head.norm_before_fc:
        raise ModelError(f"{where}: fc_norm and norm_before_fc exclude each other")
    rope = layer.rope_parameters or layer.rope_scaling
    return HeadConfig(
        hidden=layer.hidden_size,
        heads=layer.num_attention_heads,
        kv_heads=layer.num_key_value_heads or layer.num_attention_heads,
        head_dim=layer.head_dim or layer.hidden_size // layer.num_attention_heads,
        intermediate=layer.intermediate_size,
        draft_vocab=head.draft_vocab_size,
        captured=_captured(head, target),
        eps=layer.rms_norm_eps,
        rope_theta=(rope and rope.rope_theta) or layer.rope_theta,
        rope_scaling=None if rope is None else rope.scaling(where),
        feature_norm="each" if head.fc_norm else "joint" if head.norm_before_fc else "none",
        norm_output=head.norm_output,
        norm_before_residual=head.norm_before_residual,
    )


def describe(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _captured(head: _Published, target: ModelConfig) -> tuple[int, ...]:
    """Layers whose inputs the head reads.

    Ids at the top of the file (vLLM, speculators) count layer inputs; those inside ``eagle_config``
    (SpecForge, SGLang) count layer outputs. Without any, all engines take inputs of (2, n/2, n - 3).
    """
    if head.eagle_aux_hidden_state_layer_ids:
        return head.eagle_aux_hidden_state_layer_ids
    outputs = (head.eagle_config or {}).get("eagle_aux_hidden_state_layer_ids")
    if outputs:
        return tuple(int(layer) + 1 for layer in outputs)
    return default_captured(target.num_layers)


def default_captured(num_layers: int) -> tuple[int, ...]:
    """Layers whose inputs EAGLE-3 heads read unless they say otherwise: early, middle, late."""
    return tuple(
        dict.fromkeys(max(0, min(layer, num_layers - 1)) for layer in (2, num_layers // 2, num_layers - 3))
    )
