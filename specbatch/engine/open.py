"""The door to the engines: imports torch, so it is itself imported as late as possible."""

from __future__ import annotations

from collections.abc import Callable

from specbatch.config import JobConfig
from specbatch.engine.feed import Engine
from specbatch.engine.native import open_engine as open_native
from specbatch.models.files import ModelFiles
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
    """
    return open_native(config, files, encoder, report)
