"""Soft cross-entropy over the draft vocabulary without ever holding all logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import rms_norm

from specbatch.draft.training.unroll import Unrolled

_ROWS = 512
"""Entries at a time: their logits stay in the cache between the matrix products."""

_FEWEST_OTHERS = 256


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's last layer, cut down to the draft vocabulary.

    Attributes:
        norm: The final norm's weight, ``[hidden]``.
        eps: Of that norm.
        head: Rows of the draft tokens, ``[draft_vocab, hidden]``.
    """

    norm: Tensor
    eps: float
    head: Tensor

    def log_probs(self, final: Tensor) -> Tensor:
        """Log of the target's distribution, renormalised over the draft vocabulary, ``[R, draft_vocab]``."""
        logits = rms_norm(final, self.norm.shape, self.norm, self.eps) @ self.head.T
        return torch.log_softmax(logits, dim=-1)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which draft tokens a block of predictions is scored against.

    Those that matter to the target anywhere in the block always; of the others as many as needed to
    fill up, drawn at random, standing for all of them (importance-weighted sampled softmax, Bengio &
    Senécal 2008): the rest has next to no mass, and leaving it out saves most of the work.

    Attributes:
        tokens: Draft tokens per block; at least the size of the draft vocabulary is exact.
        threshold: Target probability from which a token matters.
        generator: Draws the others.
    """

    tokens: int
    threshold: float
    generator: torch.Generator

    def columns(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Draft tokens for a block and what is added to their logits, ``[C]`` each.

        Args:
            wanted: The target's probabilities, ``[R, draft_vocab]``.
        """
        size = wanted.shape[1]
        if self.tokens >= size:
            return torch.arange(size), wanted.new_zeros(size)
        matters = wanted.amax(dim=0) >= self.threshold
        chosen, rest = matters.nonzero().squeeze(1), (~matters).nonzero().squeeze(1)
        count = min(len(rest), max(self.tokens - len(chosen), _FEWEST_OTHERS))
        drawn = rest[torch.randperm(len(rest), generator=self.generator)[:count]]
        shift = wanted.new_zeros(len(chosen) + count)
        shift[len(chosen) :] = math.log(len(rest) / max(1, count))
        return torch.cat([chosen, drawn]), shift


@dataclass(frozen=True, slots=True)
class _Task:
    """Everything about a batch's predictions that carries no gradient.

    Attributes:
        final: ``[T, hidden]``.
        entries: Entry of every prediction, one tensor per step.
        weights: Weight of every prediction, one tensor per step.
        teacher: The target.
        sampling: Which draft tokens take part.
    """

    final: Tensor
    entries: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    teacher: Teacher
    sampling: Sampling


def draft_loss(
    steps: list[Unrolled], head: Tensor, at: tuple[Tensor, Tensor], teacher: Teacher, sampling: Sampling
) -> Tensor:
    """Weighted sum of soft cross-entropies, less the target's own entropy: 0 is perfect imitation.

    Args:
        steps: Outputs of all steps.
        head: LM head of the draft, ``[draft_vocab, hidden]``.
        at: The target's states before its final norm, ``[T, hidden]``, and the weights of the
            predictions, ``[steps, T]``; those with weight 0 cost nothing.
        teacher: The target.
        sampling: Which draft tokens take part.

    Returns:
        The sum, a scalar.
    """
    final, weights = at
    entries, kept, outputs = [], [], []
    for step, weight in zip(steps, weights, strict=True):
        here = weight[step.entries]
        chosen = here.nonzero().squeeze(1)
        entries.append(step.entries[chosen])
        kept.append(here[chosen])
        outputs.append(step.outputs[chosen])
    task = _Task(final, tuple(entries), tuple(kept), teacher, sampling)
    total: Tensor = _DraftLoss.apply(task, head, *outputs)  # type: ignore[no-untyped-call]
    return total


class _DraftLoss(torch.autograd.Function):
    """Gradients are made on the way forward, block by block, while the logits are there."""

    @staticmethod
    def forward(ctx: FunctionCtx, task: _Task, head: Tensor, *outputs: Tensor) -> Tensor:
        head_grad = torch.zeros_like(head)
        grads = [torch.zeros_like(states) for states in outputs]
        total = head.new_zeros(())
        for start in range(0, len(task.final), _ROWS):
            spans = [_span(entries, start) for entries in task.entries]
            used = torch.zeros(min(_ROWS, len(task.final) - start), dtype=torch.bool)
            for entries, span in zip(task.entries, spans, strict=True):
                used[entries[span] - start] = True
            if not bool(used.any()):
                continue
            place = used.cumsum(0) - 1
            log_probs = task.teacher.log_probs(task.final[start : start + _ROWS][used])
            block = _Block(log_probs, head, head_grad, task.sampling)
            for step, span in enumerate(spans):
                rows = place[task.entries[step][span] - start]
                total += block.score(rows, outputs[step][span], task.weights[step][span], grads[step][span])
            block.finish()
        ctx.save_for_backward(head_grad, *grads)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = grad_outputs
        return (None, *(grad * factor for grad in ctx.saved_tensors))  # type: ignore[attr-defined]


def _span(entries: Tensor, start: int) -> slice:
    """Those of ascending entries that lie in the block from ``start`` on."""
    low, high = torch.searchsorted(entries, torch.tensor([start, start + _ROWS])).tolist()
    return slice(low, high)


class _Block:
    """Some entries of a batch and the draft tokens they are scored against.

    Args:
        log_probs: The target's, ``[R, draft_vocab]``.
        head: LM head of the draft.
        head_grad: Its gradient, added to.
        sampling: Which draft tokens take part.
    """

    def __init__(self, log_probs: Tensor, head: Tensor, head_grad: Tensor, sampling: Sampling) -> None:
        wanted = log_probs.exp()
        self._columns, self._shift = sampling.columns(wanted)
        self._wanted = wanted[:, self._columns]
        self._surprise = (self._wanted * log_probs[:, self._columns]).sum(dim=1)
        self._head = head[self._columns]
        self._grad = torch.zeros_like(self._head)
        self._head_grad = head_grad

    def score(self, rows: Tensor, states: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        """Loss of one step's predictions; writes the gradient of their states.

        Args:
            rows: int64 ``[N]``, into the block.
            states: ``[N, hidden]``.
            weights: ``[N]``.
            grad: ``[N, hidden]``, overwritten.
        """
        logits = torch.addmm(self._shift, states, self._head.T)
        total = logits.logsumexp(dim=1, keepdim=True)
        logits -= total
        wanted = self._wanted[rows]
        loss = (self._surprise[rows] - (wanted * logits).sum(dim=1)) @ weights
        # Where the columns leave out some of the target's mass, the rest of it counts as told.
        mass = wanted.sum(dim=1, keepdim=True)
        wrong = logits.exp_().mul_(mass).sub_(wanted).mul_(weights.unsqueeze(1))
        torch.mm(wrong, self._head, out=grad)
        self._grad.addmm_(wrong.T, states)
        return loss

    def finish(self) -> None:
        """Hand the gradient of the LM head's rows over."""
        self._head_grad.index_add_(0, self._columns, self._grad)
