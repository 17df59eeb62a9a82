"""The stages of ``specbatch train-draft``, in order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specbatch.draft.training.collect import Collection, collect
from specbatch.draft.training.meter import Meter
from specbatch.draft.training.recipe import Writing, own_words
from specbatch.draft.training.shards import ShardFolder
from specbatch.draft.training.target import open_scribes
from specbatch.hardware.threads import usable_cores
from specbatch.models.config import ModelConfig
from specbatch.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for.

    Attributes:
        model: The target.
        data: Folder of the training data.
        tokens: How much of them.
        seed: Of everything that is drawn.
        threads: CPU threads; ``None`` is all cores.
        seats: Documents in flight per thread.
    """

    model: str
    data: Path
    tokens: int
    seed: int
    threads: int | None
    seats: int


def run_plan(plan: Plan, command: Sequence[str]) -> None:
    """Collect what is missing, then train."""
    files = resolve_model(plan.model, report=_say)
    config = ModelConfig.from_directory(files.directory)
    source = own_words(files, config, Writing(plan.seed))
    folder = ShardFolder(plan.data, source.recipe)
    if folder.facts().get("tokens", 0) < plan.tokens:
        scribes = open_scribes(files, config, plan.threads or usable_cores())
        torch.set_num_threads(1)
        wanted = Collection(plan.tokens, plan.seats, source.capacity)
        with Meter("collecting", plan.tokens, "tokens") as meter:
            collect(scribes, folder, source.document, wanted, meter.update)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
