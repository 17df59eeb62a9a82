"""What a job takes from outside, so that tests can put in their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specbatch.config import JobConfig
from specbatch.energy.find import open_meter
from specbatch.errors import EngineError
from specbatch.job.gauge import MeterFinder
from specbatch.job.state import ModelResolver
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.progress import Reporter, open_reporter
from specbatch.rows import Prompt, RawPrompt
from specbatch.signals import held
from specbatch.startup import UNTOUCHED, deferring, loading, torch_meanwhile

if TYPE_CHECKING:  # the engine's room imports torch
    from specbatch.engine.feed import Engine
    from specbatch.text.encoder import PromptEncoder

MORE_MEMORY = "free memory, or raise its limit (ulimit -v, the container's); the same command continues"

WITHOUT_TORCH = ("specbatch.policy", "specbatch.schedule.overload", "specbatch.schedule.scheduler")
"""Rooms of the engine that can be entered while torch is not there yet."""

WITH_LIBRARIES = ("statistics", "asyncio")
"""What of Python's those rooms and torch import that loads libraries. It comes first: while torch's library
loads, no other one can."""

FOR_TORCH = ("unittest.mock", "urllib.request")
"""What else ``import torch`` imports that takes milliseconds and loads no library."""

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
        with held():
            encoder = _encoder_beside_torch(config, files, started)
            try:
                with deferring(*UNTOUCHED):
                    from specbatch.engine.open import open_engine  # noqa: PLC0415
            except (ImportError, OSError, MemoryError, RuntimeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                hint = f"{MORE_MEMORY}; if there is enough, the installation is damaged: see specbatch doctor"
                raise EngineError(f"torch cannot be loaded: {reason}", hint) from error
        return open_engine(config, files, encoder, report)


def _encoder_beside_torch(config: JobConfig, files: ModelFiles, started: datetime) -> PromptEncoder:
    """Template and tokenizer, read while torch's library is loaded on another core, and what else can be."""
    # A finished job does without. Imported first, for while torch's library loads, no other one can.
    from specbatch.engine import encoder  # noqa: PLC0415
    from specbatch.text.tokenizer import first_call  # noqa: PLC0415

    first_call()
    for name in WITH_LIBRARIES:
        import_module(name)
    with torch_meanwhile():
        opened = encoder.open_encoder(config, files.directory, started)
        for name in (*WITHOUT_TORCH, *FOR_TORCH):
            import_module(name)
    return opened


def open_encoder(config: JobConfig, directory: Path, started: datetime | None = None) -> PromptEncoder:
    """See :func:`specbatch.engine.encoder.open_encoder`."""
    from specbatch.engine import encoder  # noqa: PLC0415 - a finished job does without

    return encoder.open_encoder(config, directory, started)


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
