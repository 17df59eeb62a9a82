"""Logits → the distribution a row samples from → its next token. The only home of the filters.

Order of the filters (that of Hugging Face transformers): repetition penalty, temperature, top-k,
top-p, min-p. Each acts on what the one before kept. Tokens tied with the last one kept are kept too,
so the result does not depend on how a sort breaks ties.

Every reduction here is exact (max, comparisons) or runs in a fixed sequential order (cumulative
sums), so a row's result has the same bits in any batch and with any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbatch.randomness import Stream, gumbel
from specbatch.rows import SamplingParams
from specbatch.tensors import int64s


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over the tokens that survived the filters.

    Attributes:
        tokens: Ids in ascending order, int64 ``[n]``, n ≥ 1.
        log_weights: Log probabilities up to a common constant, float64 ``[n]``.
    """

    tokens: Tensor
    log_weights: Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """What is needed to choose one token.

    Attributes:
        params: The row's sampling parameters.
        stream: The row's randomness.
        position: Absolute position of the token to be chosen.
        history: Distinct tokens of prompt and output, for the penalty.
    """

    params: SamplingParams
    stream: Stream
    position: int
    history: tuple[int, ...]

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is simply the largest logit."""
        return self.params.temperature == 0.0 and self.params.repetition_penalty == 1.0


def choose(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Choose the next token of many rows.

    Args:
        logits: float32 ``[rows, vocab]``.
        draws: One for each row.

    Returns:
        One token id for each row; ``None`` where the row's logits hold a NaN or are all -inf.
    """
    largest, token = logits.max(dim=-1)
    usable = torch.isfinite(largest).tolist()
    greedy = token.tolist()
    chosen: list[int | None] = []
    for i, draw in enumerate(draws):
        if not usable[i]:
            chosen.append(None)
        elif draw.is_plain_greedy:
            chosen.append(greedy[i])
        else:
            chosen.append(choose_one(logits[i], draw))
    return chosen


def choose_reference(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Slow twin of :func:`choose`: one row at a time."""
    usable = [bool(torch.isfinite(row.max())) for row in logits]
    return [
        choose_one(row, draw) if ok else None for row, draw, ok in zip(logits, draws, usable, strict=True)
    ]


def choose_one(logits: Tensor, draw: Draw) -> int:
    """The rule: ``argmax(log p + g)`` over the surviving tokens, with g = 0 when greedy.

    Args:
        logits: float32 ``[vocab]``, no NaN.
        draw: The row's parameters and randomness.
    """
    penalised = penalise(logits.to(torch.float64), draw.history, draw.params.repetition_penalty)
    if draw.params.temperature == 0.0:
        return int(penalised.argmax())
    target = distribution(penalised, draw.params)
    noise = gumbel(draw.stream, draw.position, target.tokens)
    return int(target.tokens[(target.log_weights + noise).argmax()])


def penalise(logits: Tensor, history: Sequence[int], penalty: float) -> Tensor:
    """Repetition penalty of CTRL (Keskar et al. 2019, section 4.1); a new tensor unless it is 1."""
    if penalty == 1.0 or not history:
        return logits
    tokens = int64s(history).to(logits.device)
    seen = logits[tokens]
    limit = torch.finfo(
        logits.dtype
    ).max  # a penalty near 0 or 1e308 leads beyond, and inf - inf is no number
    moved = torch.where(seen > 0, seen / penalty, seen * penalty).clamp(-limit, limit)
    return logits.index_copy(0, tokens, moved)


def distribution(logits: Tensor, params: SamplingParams) -> Distribution:
    """Apply temperature and filters.

    Args:
        logits: float64 ``[vocab]``, penalties already applied.
        params: ``temperature`` > 0.

    Returns:
        The tokens that survive; at least the most likely one.
    """
    # Subtracting first: divided by a temperature of 1e-310, the largest logit would be infinite.
    scaled = (logits - logits.max()) / params.temperature
    kept = Distribution(torch.arange(len(scaled), device=scaled.device), scaled)
    if 0 < params.top_k < len(scaled):
        kept = _above(kept, torch.topk(kept.log_weights, params.top_k).values[-1])
    if params.top_p < 1.0:
        kept = _above(kept, _top_p_threshold(kept.log_weights, params.top_p))
    if params.min_p > 0.0:
        kept = _above(kept, torch.tensor(params.min_p, dtype=torch.float64).log())
    return kept


def _above(target: Distribution, threshold: Tensor) -> Distribution:
    keep = (target.log_weights >= threshold).nonzero().squeeze(1)
    return Distribution(target.tokens[keep], target.log_weights[keep])


def _top_p_threshold(log_weights: Tensor, top_p: float) -> Tensor:
    """Log weight of the last token needed to reach mass ``top_p``.

    Sorting only as many of the largest as needed gives the same sums as sorting all of them.
    """
    weights = log_weights.exp()
    wanted = top_p * weights.cumsum(0)[-1]
    size = min(256, len(weights))
    while True:
        largest = torch.topk(weights, size).values
        mass = largest.cumsum(0)
        if size == len(weights) or mass[-1] >= wanted:
            break
        size = min(8 * size, len(weights))
    last = min(int(torch.searchsorted(mass, wanted)), size - 1)
    return torch.topk(log_weights, last + 1).values[-1]
