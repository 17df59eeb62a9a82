"""The door to the engines: imports torch, so it is itself imported as late as possible."""

from __future__ import annotations

from specbatch.config import JobConfig
from specbatch.engine.feed import Engine
from specbatch.engine.native import open_engine as open_native
from specbatch.models.files import ModelFiles


def open_engine(config: JobConfig, files: ModelFiles) -> Engine:
    """Load the model of a job with the engine it asks for."""
    return open_native(config, files)
