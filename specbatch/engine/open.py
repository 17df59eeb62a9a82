"""The door to the engines: imports torch, so it is itself imported as late as possible."""

from __future__ import annotations

from datetime import datetime

from specbatch.config import JobConfig
from specbatch.engine.feed import Engine
from specbatch.engine.native import open_engine as open_native
from specbatch.models.files import ModelFiles


def open_engine(config: JobConfig, files: ModelFiles, started: datetime) -> Engine:
    """Load the model of a job with the engine it asks for.

    Args:
        config: The job.
        files: The model.
        started: First start of the run: the present, for chat templates that print a date.
    """
    return open_native(config, files, started)
