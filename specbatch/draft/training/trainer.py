"""The training loop: batches addressed by step, a schedule that knows its end, state that can be put away."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbatch.draft.head_module import HeadModule
from specbatch.draft.training.batch import Batch, Example, pack
from specbatch.draft.training.dataset import BatchPlan
from specbatch.draft.training.loss import Sampling, Teacher, draft_loss
from specbatch.draft.training.unroll import unroll


@dataclass(frozen=True, slots=True)
class Hyper:
    """What shapes the result of training, beside the data.

    Attributes:
        steps: Optimiser steps in all.
        seed: Of weights, order of documents and sampled draft tokens.
        batch_tokens: A batch ends with the document that reaches this many.
        learning_rate: At its peak.
        warm_up: Share of the steps in which it rises.
        weight_decay: Of matrices.
        clip: Largest norm of the gradient.
        user_weight: Weight of the user's words; answers count 1.
        step_decay: Weight of a feedback step relative to the one before.
        phases: Feedback steps and the share of training at which they end, in order.
        sampled: Draft tokens that a prediction is scored against.
        threshold: Target probability from which a draft token is always among them.
    """

    steps: int
    seed: int = 0
    batch_tokens: int = 512
    learning_rate: float = 1.2e-3
    warm_up: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    user_weight: float = 0.3
    step_decay: float = 0.8
    phases: tuple[tuple[int, float], ...] = ((0, 0.08), (1, 0.2), (2, 0.7), (3, 1.0))
    sampled: int = 2560
    threshold: float = 1e-3

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear up, then a cosine down to a hundredth."""
        done = step / self.steps
        if done < self.warm_up:
            return self.learning_rate * (step + 1) / (self.warm_up * self.steps + 1)
        fall = (done - self.warm_up) / (1 - self.warm_up)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * fall)))

    def feedback(self, step: int) -> int:
        """Feedback steps at a step of training."""
        done = step / self.steps
        return next((count for count, end in self.phases if done < end), self.phases[-1][0])


class Trainer:
    """A head on its way.

    Args:
        module: Changed in place.
        teacher: The target over the draft vocabulary.
        examples: What to learn from.
        hyper: How.
    """

    def __init__(
        self, module: HeadModule, teacher: Teacher, examples: Sequence[Example], hyper: Hyper
    ) -> None:
        self.module, self.hyper = module, hyper
        self.step = 0
        self._teacher, self._examples = teacher, examples
        self._plan = BatchPlan(list(map(len, examples)), hyper.batch_tokens, hyper.seed)
        matrices = [p for p in module.parameters() if p.dim() == 2]
        vectors = [p for p in module.parameters() if p.dim() == 1]
        groups = [
            {"params": matrices, "weight_decay": hyper.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=hyper.learning_rate, betas=(0.9, 0.95), fused=True)

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.step >= self.hyper.steps

    def advance(self) -> tuple[float, int]:
        """One optimiser step.

        Returns:
            Loss per weighted prediction, and the tokens of the batch.
        """
        batch = self.batch(self.step)
        loss = self.loss(batch, self.hyper.feedback(self.step), self.step)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.hyper.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self.hyper.rate(self.step)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach()), batch.num_tokens

    def batch(self, step: int) -> Batch:
        """The documents of a step."""
        chosen = self._plan.documents(step)
        return pack([self._examples[number] for number in chosen], self.hyper.user_weight)

    def loss(self, batch: Batch, feedback: int, step: int) -> Tensor:
        """Mean loss of a batch over all steps of the chains, a scalar with gradient."""
        hyper = self.hyper
        decay = hyper.step_decay ** torch.arange(feedback + 1)
        weights = batch.weights * decay.unsqueeze(1)
        generator = torch.Generator().manual_seed(hyper.seed * 1_000_003 + step)
        sampling = Sampling(hyper.sampled, hyper.threshold, generator)
        steps = unroll(self.module, batch, feedback)
        total = draft_loss(steps, self.module.lm_head.weight, (batch.final, weights), self._teacher, sampling)
        return total / sum(float(weight[at.entries].sum()) for weight, at in zip(weights, steps, strict=True))

    def seconds_per_step(self) -> float:
        """How long a step takes on average over all phases, measured on the first batch."""
        batch = self.batch(0)
        self.loss(batch, 0, 0).backward()  # type: ignore[no-untyped-call]
        seconds = begin = 0.0
        for feedback, end in self.hyper.phases:
            began = time.monotonic()
            self.loss(batch, feedback, 0).backward()  # type: ignore[no-untyped-call]
            seconds += (end - begin) * (time.monotonic() - began)
            begin = end
        mean = sum(map(len, self._examples)) / len(self._examples)
        return seconds * (self.hyper.batch_tokens + mean / 2) / batch.num_tokens

    def state(self) -> dict[str, Any]:
        """Everything that :meth:`restore` needs; nothing else carries over from step to step."""
        return {
            "step": self.step,
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.step = state["step"]
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
