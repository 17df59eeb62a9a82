"""What a decoder looks like: ``config.json`` and ``generation_config.json`` as one frozen value.

Read with ``json`` alone, so that a finished job or ``--help`` never waits for a model library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specbatch.errors import ModelError

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]

SUPPORTED: tuple[Architecture, ...] = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` the native engine runs (SmolLM2 is ``llama``, Qwen2.5 is ``qwen2``)."""

_DEFAULT_ROPE_THETA = 10000.0  # checkpoints older than the key (Su et al. 2021, section 3.3)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pre-training.

    Attributes:
        kind: ``linear`` divides every frequency by ``factor`` (Chen et al. 2023, section 2);
            ``llama3`` divides the low ones, keeps the high ones and blends between (Llama 3.1).
        factor: How far the context was stretched.
        low_freq_factor: Wavelengths above ``original_max_position / low_freq_factor`` are divided.
        high_freq_factor: Wavelengths below ``original_max_position / high_freq_factor`` are kept.
        original_max_position: Context of pre-training, tokens.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder of the Llama family.

    Attributes:
        architecture: ``model_type`` of the checkpoint, one of ``SUPPORTED``.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key/value heads; divides ``num_heads``.
        head_dim: Width of one head; ``num_heads * head_dim`` need not equal ``hidden_size``.
        vocab_size: Rows of the embedding matrix.
        max_context: Most tokens a row may hold, prompt and output together.
        rms_norm_eps: Added to the mean square in RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Stretching of the frequencies, ``None`` when there is none.
        tie_embeddings: Whether the output projection is the embedding matrix.
        qkv_bias: Whether query, key and value projections carry a bias (Qwen2).
        qk_norm: Whether queries and keys are normalised per head (Qwen3).
        sliding_window: Attention window of the checkpoint; ``max_context`` never exceeds it, so
            attention inside that length is full attention.
        eos_ids: Tokens that end a text.
    """

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    sliding_window: int | None
    eos_ids: frozenset[int]

    @classmethod
    def from_directory(cls, path: Path) -> ModelConfig:
        """Read ``config.json`` and, when present, ``generation_config.json``.

        As in transformers, the end-of-sequence tokens of ``generation_config.json`` win.

        Raises:
            ModelError: A file is missing or malformed, or the model needs something the engine
                does not have; the message names it.
        """
        where = path / "config.json"
        config = _Fields(read_json(where), where)
        architecture = _architecture(config)
        _refuse_variants(config)
        num_heads = config.integer("num_attention_heads")
        num_kv_heads = config.integer("num_key_value_heads", num_heads)
        hidden_size = config.integer("hidden_size")
        if num_heads % num_kv_heads:
            raise ModelError(f"{where}: num_key_value_heads {num_kv_heads} does not divide {num_heads} heads")
        theta, scaling = _rope(config)
        window = _sliding_window(config, architecture)
        context = config.integer("max_position_embeddings")
        return cls(
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=config.integer("intermediate_size"),
            num_layers=config.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=config.integer(
                "head_dim", None if architecture == "qwen3" else hidden_size // num_heads
            ),
            vocab_size=config.integer("vocab_size"),
            max_context=context if window is None else min(context, window),
            rms_norm_eps=config.number("rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_embeddings=config.flag("tie_word_embeddings"),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            sliding_window=window,
            eos_ids=_eos_ids(path, config),
        )

    @property
    def num_parameters(self) -> int:
        """Number of stored weights, a tied output projection counted once."""
        head = self.head_dim
        attention = self.hidden_size * head * (2 * self.num_heads + 2 * self.num_kv_heads)
        extra = 2 * self.hidden_size + (2 * head if self.qk_norm else 0)
        extra += head * (self.num_heads + 2 * self.num_kv_heads) if self.qkv_bias else 0
        layer = attention + 3 * self.hidden_size * self.intermediate_size + extra
        embeddings = (1 if self.tie_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * layer + embeddings + self.hidden_size


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object whose values are checked as they are read."""

    values: Mapping[str, object]
    where: Path

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; ``default`` when absent or null, an error without one."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self.where}: {key} must be a positive integer, found {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; ``default`` when absent or null, an error without one."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self.where}: {key} must be a positive number, found {value!r}")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean; false when absent, as in transformers for every supported family."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key} must be true or false, found {value!r}")
        return value

    def section(self, key: str) -> _Fields | None:
        """A nested object; ``None`` when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}: {key} must be an object, found {value!r}")
        return _Fields(value, self.where)


def read_json(path: Path) -> dict[str, object]:
    """Read one JSON object.

    Raises:
        ModelError: The file is missing, is not JSON, or is not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}", "point --model at a model directory") from error
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read: {error}", "fetch the model again (specbatch model pull --force)"
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _architecture(config: _Fields) -> Architecture:
    found = config.values.get("model_type")
    for name in SUPPORTED:
        if found == name:
            return name
    raise ModelError(
        f"{config.where}: model_type {found!r} is not supported by the native engine",
        f"supported: {', '.join(SUPPORTED)} (Llama, SmolLM2, Mistral, Qwen2, Qwen2.5, Qwen3)",
    )


def _refuse_variants(config: _Fields) -> None:
    """Refuse options of the supported families that the decoder does not implement."""
    activation = config.values.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"{config.where}: hidden_act {activation!r} is not supported, only 'silu'")
    for key in ("attention_bias", "mlp_bias"):
        if config.flag(key):
            raise ModelError(f"{config.where}: {key} = true is not supported")
    if config.values.get("quantization_config") is not None:
        raise ModelError(
            f"{config.where}: the checkpoint is quantised (quantization_config)",
            "use the unquantised checkpoint or a .gguf file",
        )
    rotary = (config.section("rope_parameters") or config).number("partial_rotary_factor", 1.0)
    if rotary != 1.0:
        raise ModelError(f"{config.where}: partial_rotary_factor {rotary} is not supported, only 1")


def _rope(config: _Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling; transformers 5 writes both into ``rope_parameters``."""
    parameters = config.section("rope_parameters")
    scaling = parameters or config.section("rope_scaling")
    theta = config.number("rope_theta", _DEFAULT_ROPE_THETA)
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
    if scaling is None:
        return theta, None
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", scaling.number("factor"))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            scaling.number("factor"),
            scaling.number("low_freq_factor"),
            scaling.number("high_freq_factor"),
            scaling.integer("original_max_position_embeddings"),
        )
    raise ModelError(
        f"{config.where}: rope scaling {kind!r} is not supported, only linear and llama3",
        "without the scaling entry the model runs at the context it was trained with",
    )


def _sliding_window(config: _Fields, architecture: Architecture) -> int | None:
    """Window in tokens; ``None`` when every layer attends to everything."""
    if architecture == "llama" or config.values.get("sliding_window") is None:
        return None
    layers = config.values.get("layer_types")
    if isinstance(layers, list):
        used = "sliding_attention" in layers
    else:
        used = architecture == "mistral" or config.flag("use_sliding_window")
    return config.integer("sliding_window") if used else None


def _eos_ids(path: Path, config: _Fields) -> frozenset[int]:
    where = path / "generation_config.json"
    found = read_json(where).get("eos_token_id") if where.exists() else None
    found = config.values.get("eos_token_id") if found is None else found
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{path}: eos_token_id must be an integer or a list of integers, found {found!r}")
    return frozenset(ids)
