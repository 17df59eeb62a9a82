"""One training run: from data on disk to a head in a file, with checkpoints in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from specbatch.draft.head_weights import HeadWeights, Quantisation, load_head, save_head
from specbatch.draft.training.dataset import Dataset, frequent_tokens
from specbatch.draft.training.evaluate import Evaluation, evaluate
from specbatch.draft.training.meter import Meter
from specbatch.draft.training.trainer import Hyper, Trainer
from specbatch.draft.training.warm_start import (
    head_config,
    make_teacher,
    needed_weights,
    new_module,
    pass_last_feature,
    take_head,
)
from specbatch.errors import InputError, ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.stored import StoredTensor
from specbatch.signals import Interrupts
from specbatch.table.atomic import replacing

CHECKPOINT_S = 240.0
_LOOKS = 12
_SMOOTHED = 20
_GLANCE = 24
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may say about training.

    Attributes:
        out: The head's file; checkpoint and manifest stand beside it.
        draft_vocab: Tokens it can propose.
        quantise: Block format of its matrices.
        depth: Length of the chains that it is judged by.
        threads: CPU threads; part of what makes a run repeatable.
        start: A head to begin with, which also gives the draft vocabulary; ``None``: a new one.
    """

    out: Path
    draft_vocab: int = 8192
    quantise: Quantisation = "q8_0"
    depth: int = 4
    threads: int = 1
    start: Path | None = None

    @property
    def checkpoint(self) -> Path:
        """Where training is put away."""
        return self.out.with_suffix(".checkpoint")


@dataclass(slots=True)
class Record:
    """What a training run has been through; kept in checkpoints, printed in the manifest.

    Attributes:
        shards: How much of each folder of data takes part.
        plans: ``[step, steps]``: from which step on how many steps were planned in all.
        seconds: Spent in training, all attempts.
        tokens: Seen, repetitions counted.
        losses: ``[step, loss]``, means over a few steps.
        evaluations: ``step`` and the evaluation then.
    """

    shards: list[int]
    plans: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    losses: list[list[float]] = field(default_factory=list)
    evaluations: list[dict[str, object]] = field(default_factory=list)


class Session:
    """A training run.

    Args:
        target: The model and its shape.
        data: What to learn from.
        hyper: How.
        options: The rest.
    """

    def __init__(
        self, target: tuple[ModelFiles, ModelConfig], data: Dataset, hyper: Hyper, options: Options
    ) -> None:
        torch.set_num_threads(options.threads)
        files, self._target = target
        self._data, self._options = data, options
        begun = None if options.start is None else load_head(options.start, self._target)
        size = options.draft_vocab if begun is None else begun.config.draft_vocab
        config = head_config(files, self._target, min(size, self._target.vocab_size))
        _check_blocks(config.shapes, options.quantise)
        self.target_ids = (
            frequent_tokens(data.train, config.draft_vocab, self._target.eos_ids)
            if begun is None
            else begun.target_ids
        )
        weights = needed_weights(files, self._target)
        self.module = new_module(config, self._target, weights, self.target_ids, hyper.seed)
        if begun is None:
            pass_last_feature(self.module, data.train)
        else:
            take_head(self.module, begun)
        teacher = make_teacher(weights, self._target, self.target_ids)
        self.trainer = Trainer(self.module, teacher, data.train, hyper)
        self.record = Record(list(data.shards), [[0, hyper.steps]])

    def fit(self, minutes: float) -> int:
        """Steps that take about this long on this machine as it is now; nothing is learned."""
        seconds = self.trainer.seconds_per_step()
        steps = max(1, round(60 * minutes / seconds))
        self.plan(steps)
        return steps

    def plan(self, steps: int) -> None:
        """Plan another number of steps from here on."""
        self.trainer.hyper = replace(self.trainer.hyper, steps=steps)
        begun = [plan for plan in self.record.plans if plan[0] < self.trainer.step]
        self.record.plans = [*begun, [self.trainer.step, steps]]

    def resume(self) -> None:
        """Go on from the checkpoint.

        Raises:
            InputError: There is none, or it cannot be read.
        """
        state = read_checkpoint(self._options.checkpoint)
        self.trainer.restore(state["trainer"])
        self.record = Record(**state["record"])

    def describe(self) -> str:
        """One line about what is about to happen."""
        parameters = sum(parameter.numel() for parameter in self.module.parameters())
        documents, tokens = len(self._data.train), self._data.train_tokens
        return (
            f"{parameters / 1e6:.1f} M parameters, {documents:,} documents of {tokens:,} tokens, "
            f"steps {self.trainer.step:,} to {self.trainer.hyper.steps:,}"
        )

    def train(self, meter: Meter) -> None:
        """Take the steps that are left; the state is put away now and then, and when a signal asks to stop.

        Raises:
            Interrupted: A signal ended it; the checkpoint is complete.
        """
        trainer, recent = self.trainer, list[float]()
        saved = time.monotonic()
        look = max(1, trainer.hyper.steps // _LOOKS)
        with Interrupts() as interrupts, interrupts.deferred():
            while not trainer.done:
                began = time.monotonic()
                loss, tokens = trainer.advance()
                recent = [*recent[1 - _SMOOTHED :], loss]
                self.record.tokens += tokens
                self.record.seconds += time.monotonic() - began
                mean = sum(recent) / len(recent)
                meter.update(trainer.step, f"loss {mean:.3f}")
                if trainer.step % look == 0:
                    self._look(mean, meter)
                late = time.monotonic() - saved > CHECKPOINT_S
                if late or trainer.done or interrupts.requested:
                    self.put_away()
                    saved = time.monotonic()
                interrupts.check()

    def _look(self, loss: float, meter: Meter) -> None:
        """Judge the head by a few held-out documents."""
        found = evaluate(self.module, self._data.greedy[:_GLANCE], self.target_ids, self._options.depth)
        self.record.losses.append([self.trainer.step, round(loss, 4)])
        self.record.evaluations.append({"step": self.trainer.step, **found.as_dict()})
        meter.message(f"step {self.trainer.step}: loss {loss:.3f}, {found}")

    def put_away(self) -> None:
        """Write a checkpoint, in full or not at all."""
        state = {
            "trainer": self.trainer.state(),
            "record": asdict(self.record),
            "hyper": asdict(self.trainer.hyper),
            "draft_vocab": len(self.target_ids),
            "start": None if self._options.start is None else str(self._options.start.resolve()),
        }
        with replacing(self._options.checkpoint) as sibling:
            torch.save(state, sibling)

    def finish(self) -> Evaluation:
        """Write the head and judge what was written, on all held-out greedy answers."""
        config = self.module.config
        tensors = {name: StoredTensor(self.module.get_parameter(name).detach()) for name in config.shapes}
        save_head(HeadWeights(config, tensors, self.target_ids), self._options.out, self._options.quantise)
        written = load_head(self._options.out, self._target)
        take_head(self.module, written)
        return evaluate(self.module, self._data.greedy, self.target_ids, self._options.depth)


def _check_blocks(shapes: Mapping[str, tuple[int, ...]], quantise: Quantisation) -> None:
    """Refuse a block format that does not fit before time is spent on training."""
    for name, shape in shapes.items():
        if quantise != "none" and len(shape) == 2 and shape[1] % _BLOCK:
            raise ModelError(
                f"{name} has {shape[1]} columns, {quantise} needs a multiple of {_BLOCK}",
                "save the head as it is: --quantise none",
            )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What :meth:`Session.put_away` wrote.

    Raises:
        InputError: It is not there, or damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}", "leave --resume out to begin")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a checkpoint of train-draft: {error}", "begin again") from error
    return state
