"""What makes two runs the same: the settings that shape texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the settings offer this function, so they are imported first
    from specbatch.config import JobConfig


class ModelIdentity(Protocol):
    """What identifies a model on disk (provided by :mod:`specbatch.models`)."""

    @property
    def digest(self) -> str:
        """SHA-256 over the weights."""

    @property
    def side_digest(self) -> str:
        """SHA-256 over configuration, tokenizer and chat template."""

    @property
    def quantization(self) -> str:
        """Label of the stored number format, e.g. ``q4_1``; ``none`` for plain floats."""


def identity(config: JobConfig, model: ModelIdentity) -> dict[str, object]:
    """The settings that change a row's text, one flat JSON-ready mapping.

    A run directory continues only with an equal identity. Tiers, deadlines, batching, drafters and
    policies are absent on purpose: they change when a row is answered, never what is answered. What
    the machine contributes (device class, number format, kernels) is compared by the engine's own
    :attr:`specbatch.engine.feed.Engine.numerics`.
    """
    return {
        "model_digest": model.digest,
        "quantization": config.quantize or model.quantization,
        "side_digest": model.side_digest,
        **chosen(config),
    }


def chosen(config: JobConfig) -> dict[str, object]:
    """The part of :func:`identity` that does not come from the model's files."""
    keys = ("engine", "seed", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    settings = {key: getattr(config, key) for key in keys}
    return {
        **settings,
        "stop": list(config.stop),
        "system": config.system,
        "template": config.template,
        "raw_prompts": config.raw_prompts,
        "token_ids": config.token_ids,
    }
