"""The model a head is trained for, as a scribe that reports hidden states."""

from __future__ import annotations

from dataclasses import replace

from specbatch_kernels.cpu import PackedDecoder, ThreadPool, available, unavailable_reason

from specbatch.draft.head_config import default_captured
from specbatch.draft.training.writer import Scribe
from specbatch.errors import UsageError
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.packed import build_packed
from specbatch.models.weights import load_stored


def captured_places(config: ModelConfig) -> tuple[int, ...]:
    """What is kept of every token: the features of a head, then the input of the final norm."""
    return (*default_captured(config.num_layers), config.num_layers)


def open_scribes(files: ModelFiles, config: ModelConfig, count: int) -> list[Scribe]:
    """Load the target so that it reports :func:`captured_places`.

    Writing many documents, several scribes of one thread each do more than one of several threads:
    none of them ever waits for another.

    Args:
        files: The target.
        config: Its shape.
        count: Scribes; they share the weights.

    Raises:
        UsageError: The compiled kernels are missing.
        ModelError: The weights cannot be used.
    """
    if not available():
        raise UsageError(
            f"train-draft needs the compiled CPU kernels: {unavailable_reason()}",
            "specbatch doctor says more",
        )
    plain = build_packed(config, load_stored(files, config))
    parts = replace(plain.parts, captured=captured_places(config))
    decoder = PackedDecoder(plain.layers, parts)
    return [Scribe(decoder, ThreadPool(1)) for _ in range(count)]
