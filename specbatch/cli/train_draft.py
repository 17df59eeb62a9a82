"""``specbatch train-draft``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbatch.models.catalog import DEFAULT_MODEL

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command("train-draft")
def train_draft(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Training data: made, or gone on with.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="The target.")] = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(min=1, help="Collect until there are so many tokens.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    seats: Annotated[int, typer.Option(min=1, help="Documents in flight per thread.")] = 64,
) -> None:
    """Train a draft head for a target on text that the target writes itself.

    Example: specbatch train-draft --data head-data --out head.safetensors
    """
    from specbatch.draft.training.command import Plan, run_plan  # noqa: PLC0415 - brings in torch

    run_plan(Plan(model, data, tokens, seed, threads, seats), sys.argv)
