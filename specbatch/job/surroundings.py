"""What a job takes from outside, so that tests can put in their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specbatch.config import JobConfig
from specbatch.energy.find import open_meter
from specbatch.errors import EngineError
from specbatch.job.gauge import MeterFinder
from specbatch.job.state import ModelResolver
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.progress import Reporter, open_reporter
from specbatch.rows import Prompt, RawPrompt
from specbatch.startup import UNTOUCHED, deferring, loading

if TYPE_CHECKING:  # the engine's room imports torch
    from specbatch.engine.feed import Engine
    from specbatch.text.encoder import PromptEncoder

MORE_MEMORY = "free memory, or raise its limit (ulimit -v, the container's); the same command continues"

EngineFactory = Callable[[JobConfig, ModelFiles, datetime, Callable[[str], None]], "Engine"]
"""Job, model, first start of the run, and who hears of stages that take longer than usual → engine."""


class Encoder(Protocol):
    """The part of :class:`specbatch.text.encoder.PromptEncoder` that a job needs."""

    def encode(self, raw: RawPrompt) -> Prompt:
        """Tokenise one row.

        Raises:
            RowFault: The row cannot be answered.
        """


def open_native_engine(
    config: JobConfig, files: ModelFiles, started: datetime, report: Callable[[str], None]
) -> Engine:
    """The engine of a real run; importing it takes seconds, so that is left until it is needed.

    Raises:
        EngineError: Its libraries cannot be loaded.
        SpecbatchError: The model cannot be.
    """
    with loading():
        try:
            with deferring(*UNTOUCHED):
                from specbatch.engine.open import open_engine  # noqa: PLC0415
        except (ImportError, OSError, MemoryError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            hint = f"{MORE_MEMORY}; if there is enough, the installation is damaged: see specbatch doctor"
            raise EngineError(f"torch cannot be loaded: {reason}", hint) from error
        return open_engine(config, files, started, report)


def open_encoder(config: JobConfig, directory: Path, started: datetime | None = None) -> PromptEncoder:
    """Template and tokenizer of a model, which need neither its weights nor torch.

    Args:
        config: The job.
        directory: The model's.
        started: The present, for chat templates that print a date; ``None`` is the clock.

    Raises:
        ModelError: A file of the model cannot be used.
    """
    # A finished job does without.
    from specbatch.text.chat import ChatTemplate  # noqa: PLC0415
    from specbatch.text.encoder import PromptEncoder  # noqa: PLC0415
    from specbatch.text.tokenizer import Tokenizer  # noqa: PLC0415

    model, template = ModelConfig.from_directory(directory), ChatTemplate.load(directory, started)
    return PromptEncoder(Tokenizer.load(directory), template, model, config.system, config.raw_prompts)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job takes from outside; tests put in their own.

    Attributes:
        open_engine: Loads the model.
        find_model: Finds or fetches its files.
        open_reporter: Where progress goes.
        wall: Unix time, seconds.
        open_encoder: Loads template and tokenizer alone.
        find_meter: Opens an energy meter.
    """

    open_engine: EngineFactory = open_native_engine
    find_model: ModelResolver = resolve_model
    open_reporter: Callable[[], Reporter] = open_reporter
    wall: Callable[[], float] = time.time
    open_encoder: Callable[[JobConfig, Path, datetime], Encoder] = open_encoder
    find_meter: MeterFinder = open_meter
