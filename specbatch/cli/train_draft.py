"""``specbatch train-draft``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.draft.training.settings import TrainSettings, read_settings

PANELS = {
    "Head": ("out", "model", "start", "draft_vocab", "quantise"),
    "Data": (
        "data",
        "also",
        "prompts",
        "rows",
        "tokens",
        "user_tokens",
        "answer_tokens",
        "temperature",
        "seats",
    ),
    "Training": ("minutes", "steps", "batch_tokens", "learning_rate", "seed", "threads"),
}

_CollectOnly = Annotated[bool, typer.Option("--collect-only", metavar="", help="Stop before training.")]
_Resume = Annotated[
    bool, typer.Option("--resume", metavar="", help="Go on from the checkpoint beside --out.")
]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command("train-draft")
@with_flags(TrainSettings, PANELS)
def train_draft(collect_only: _CollectOnly = False, resume: _Resume = False, **flags: object) -> None:
    """Train a draft head (EAGLE-3.1) for a model, on text that the model writes itself.

    With --prompts, on its answers to the prompts of a table; with --rows, on the
    rows of a past run of that model. The text is kept in --data and gone on with;
    training goes on from its last checkpoint with --resume. Beside the head stands
    a JSON file that says how it was made and how far its drafts get on answers it
    has not seen.

    Example: specbatch train-draft --data head-data --out head.safetensors
    """
    settings = read_settings(flags)
    # Brings in torch, which --help does without.
    from specbatch.draft.training.command import run_training  # noqa: PLC0415

    run_training(settings, sys.argv[1:], collect_only=collect_only, resume=resume)
