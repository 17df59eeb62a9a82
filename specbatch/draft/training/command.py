"""The stages of ``specbatch train-draft``, in order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from specbatch.draft.training.collect import Collection, collect
from specbatch.draft.training.dataset import open_dataset
from specbatch.draft.training.manifest import (
    data_sections,
    manifest_path,
    training_sections,
    write_manifest,
)
from specbatch.draft.training.meter import Meter
from specbatch.draft.training.past_rows import past_rows
from specbatch.draft.training.prompts import answers_to
from specbatch.draft.training.recipe import Source, Writing, own_words
from specbatch.draft.training.session import Options, Session, read_checkpoint
from specbatch.draft.training.settings import TrainSettings
from specbatch.draft.training.shards import ShardFolder
from specbatch.draft.training.target import open_scribes
from specbatch.draft.training.trainer import Hyper
from specbatch.errors import UsageError
from specbatch.hardware.threads import usable_cores
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class _Work:
    """What all stages share."""

    settings: TrainSettings
    files: ModelFiles
    config: ModelConfig
    threads: int


def run_training(
    settings: TrainSettings, command: Sequence[str], *, collect_only: bool = False, resume: bool = False
) -> None:
    """Collect what is missing, train, judge, and write head and manifest.

    Args:
        settings: What to do.
        command: Arguments of the command line, for the manifest.
        collect_only: Stop before training.
        resume: Go on from the checkpoint.

    Raises:
        SpecbatchError: It cannot be done, or was interrupted; data and checkpoints stay.
    """
    threads = settings.threads or usable_cores()
    options = None if collect_only else _options(settings, threads, resume)
    data_folder = _given(settings.data, "--data", "name a folder for the training data")
    files = resolve_model(settings.model, report=_say)
    work = _Work(settings, files, ModelConfig.from_directory(files.directory), threads)
    folder = _collect(work, data_folder, complete=resume)
    if options is None:
        return
    saved = read_checkpoint(options.checkpoint) if resume else None
    folders = [folder, *(ShardFolder(path, None) for path in settings.also)]
    data = open_dataset(folders, None if saved is None else saved["record"]["shards"])
    if saved is None:
        hyper = Hyper(settings.steps or 1, settings.seed, settings.batch_tokens, settings.learning_rate)
        session = Session((files, work.config), data, hyper, options)
        _begin(session, settings)
    else:
        start = saved.get("start")
        begun = None if start is None else Path(start)
        options = replace(options, draft_vocab=saved["draft_vocab"], start=begun)
        session = Session((files, work.config), data, _hyper(saved), options)
        _go_on(session, settings)
    with Meter("training", session.trainer.hyper.steps, "steps") as meter:
        meter.message(f"training: {session.describe()}")
        session.train(meter)
    evaluation = session.finish()
    trained = training_sections(session.trainer.hyper, session.record, evaluation)
    write_manifest(options, {**data_sections(files, folders, data, command), **trained})
    options.checkpoint.unlink(missing_ok=True)
    _say(f"{options.out}: {evaluation}")


def _options(settings: TrainSettings, threads: int, resume: bool) -> Options:
    """Where the head goes; refuses to overwrite anything before hours are spent."""
    out = _given(settings.out, "--out", "name the head's file, or stop before training with --collect-only")
    if out.suffix != ".safetensors":
        raise UsageError(f"--out {out}: a head is a .safetensors file", "name one")
    options = Options(out, settings.draft_vocab, settings.quantise, threads=threads, start=settings.start)
    for path in (out, manifest_path(out)):
        if path.exists():
            raise UsageError(f"{path} exists", "choose another --out, or move it away")
    if options.checkpoint.exists() and not resume:
        raise UsageError(f"{options.checkpoint} exists", "go on with --resume, or delete it to begin again")
    return options


def _given(path: Path | None, flag: str, hint: str) -> Path:
    if path is None:
        raise UsageError(f"{flag} is missing", hint)
    return path


def _collect(work: _Work, path: Path, *, complete: bool) -> ShardFolder:
    """The training data, filled up unless it is to be left as it is."""
    settings = work.settings
    source = _source(work)
    folder = ShardFolder(path, source.recipe)
    if complete or folder.facts().get("tokens", 0) >= settings.tokens:
        return folder
    torch.set_num_threads(1)
    scribes = open_scribes(work.files, work.config, work.threads)
    wanted = Collection(settings.tokens, settings.seats, source.capacity)
    with Meter("collecting", settings.tokens, "tokens") as meter:
        collect(scribes, folder, source.document, wanted, meter.update)
    return folder


def _source(work: _Work) -> Source:
    settings = work.settings
    if settings.rows is not None and settings.prompts is not None:
        raise UsageError("--rows and --prompts contradict each other", "give one of them; --also mixes data")
    if settings.rows is not None:
        return past_rows(work.files, work.config, settings.rows)
    writing = Writing(settings.seed, settings.user_tokens, settings.answer_tokens, settings.temperature)
    if settings.prompts is not None:
        return answers_to(work.files, work.config, settings.prompts, writing)
    return own_words(work.files, work.config, writing)


def _begin(session: Session, settings: TrainSettings) -> None:
    if settings.steps is None:
        steps = session.fit(settings.minutes)
        _say(f"{steps:,} steps fit into {settings.minutes:g} minutes; --steps {steps} repeats this run")


def _go_on(session: Session, settings: TrainSettings) -> None:
    session.resume()
    if settings.steps is not None and settings.steps != session.trainer.hyper.steps:
        session.plan(settings.steps)


def _hyper(saved: dict[str, Any]) -> Hyper:
    return Hyper(**{entry.name: saved["hyper"][entry.name] for entry in fields(Hyper)})


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
