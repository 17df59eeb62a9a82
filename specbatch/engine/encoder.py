"""Opens what turns rows into token ids: a model's chat template and tokenizer. Imports no torch."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from specbatch.config import JobConfig
from specbatch.models.config import ModelConfig
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer


def open_encoder(job: JobConfig, directory: Path, started: datetime | None = None) -> PromptEncoder:
    """Template and tokenizer of a model, which need neither its weights nor torch.

    Args:
        job: The job.
        directory: The model's.
        started: The present, for chat templates that print a date; ``None`` is the clock.

    Raises:
        ConfigError: The job's system message has no place in this model's prompts.
        ModelError: A file of the model cannot be used.
    """
    model, template = ModelConfig.from_directory(directory), ChatTemplate.load(directory, started)
    return PromptEncoder(Tokenizer.load(directory), template, model, job.system, job.raw_prompts)
