"""The door to the engine: has the weights packed while the engine's own rooms are entered."""

from __future__ import annotations

from collections.abc import Callable

from specbatch.config import JobConfig
from specbatch.engine.device import activations_of, device_of, uses_kernels
from specbatch.engine.feed import Engine
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.packed import PackedWeights
from specbatch.models.weights import load_stored
from specbatch.text.encoder import PromptEncoder


def open_engine(
    config: JobConfig, files: ModelFiles, encoder: PromptEncoder, report: Callable[[str], None]
) -> Engine:
    """Load the model of a job with the engine it asks for.

    Args:
        config: The job.
        files: The model.
        encoder: Its chat template and tokenizer.
        report: Receives a line where loading takes longer than usual.

    Raises:
        ModelError: The model cannot be run by this engine, or a draft model or head does not fit it.
        UsageError: The device is not there, or the K/V memory is too small.
    """
    weights = _begin_packing(config, files)
    from specbatch.engine.native import open_engine as open_native  # noqa: PLC0415 - loads meanwhile

    return open_native(config, files, encoder, report, weights)


def _begin_packing(job: JobConfig, files: ModelFiles) -> PackedWeights | None:
    """The weights, on their way to the compiled kernels; ``None`` where others do the work."""
    if not uses_kernels(job, device_of(job)):
        return None
    config = ModelConfig.from_directory(files.directory)
    return PackedWeights(config, load_stored(files, config, job.quantize), activations_of(job))
