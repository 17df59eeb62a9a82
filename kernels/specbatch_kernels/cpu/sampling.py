"""The next token of many rows, filters and addressed Gumbel noise included, on CPU, and the torch twin.

The rule: after repetition penalty, temperature, top-k, top-p and min-p (in this order, each acting on
what the one before kept, tokens tied with the last one kept are kept too), the token is
``argmax(log p + g)``, where g is Gumbel noise addressed by (stream state, token), or 0 at temperature 0.
Noise is evaluated only for tokens that can still win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.pool import ThreadPool

# SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, figure 16), constants as signed 64-bit integers.
_GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


class SamplingRow(NamedTuple):
    """How the token behind one row of logits is chosen.

    Attributes:
        place: Which row of the logits.
        temperature: 0 for the most likely token (the lowest of equals).
        penalty: Repetition penalty on the history, 1 for none.
        top_p: 1 for none.
        min_p: 0 for none.
        top_k: 0 for none.
        state: SplitMix64 state of the row's stream at this position, 64 bits, unsigned; token t reads
            output t.
        history: Distinct tokens.
    """

    place: int
    temperature: float = 0.0
    penalty: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    state: int = 0
    history: tuple[int, ...] = ()


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], pool: ThreadPool) -> list[int]:
    """Choose a token for every row.

    Args:
        logits: float32 [logit rows, vocabulary].
        rows: How to choose.
        pool: Threads and instruction set to compute with; each row's choice is one worker's.

    Returns:
        One token for each; -1 where the logits hold a NaN or their maximum is not finite.

    Raises:
        ValueError: The logits have the wrong type, shape or layout, or a place or a token does not exist.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    height, width = logits.shape
    if width < 1:
        raise ValueError("logits: a row needs at least one token to choose from")
    address = native.address("logits", logits, torch.float32, (height, width))
    return _native.sample(pool.handle, address, height, width, rows)


def sample_reference(logits: torch.Tensor, rows: Sequence[SamplingRow], pool: ThreadPool | None) -> list[int]:
    """Twin of :func:`sample` in torch, one row at a time, everything evaluated for every token."""
    return [_sample_one(logits[row.place], row) for row in rows]


def _sample_one(logits: torch.Tensor, row: SamplingRow) -> int:
    if not bool(torch.isfinite(logits.max())):
        return -1
    values = _penalised(logits.double(), row)
    if row.temperature > 0:
        values = (values - values.max()) / row.temperature
        values = torch.where(values >= _threshold(values, row), values, -torch.inf)
        state = torch.tensor(row.state - (row.state >> 63 << 64))
        values = values + gumbel(state, torch.arange(len(values)))
    return int(values.argmax())


def _penalised(values: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Repetition penalty of CTRL (Keskar et al. 2019, section 4.1)."""
    history = torch.tensor(row.history, dtype=torch.int64)
    seen = values[history]
    limit = torch.finfo(values.dtype).max
    moved = torch.where(seen > 0, seen / row.penalty, seen * row.penalty).clamp(-limit, limit)
    return values if row.penalty == 1 else values.index_copy(0, history, moved)


def _threshold(values: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Smallest log weight that all filters keep."""
    threshold = torch.tensor(-torch.inf, dtype=torch.float64)
    if 0 < row.top_k < len(values):
        threshold = values.topk(row.top_k).values[-1]
    if row.top_p < 1:
        kept = values[values >= threshold].sort(descending=True).values
        mass = kept.exp().cumsum(0)
        needed = int(torch.searchsorted(mass, row.top_p * mass[-1]))
        threshold = kept[min(needed, len(kept) - 1)]
    return torch.maximum(threshold, torch.tensor(row.min_p, dtype=torch.float64).log())


def gumbel(state: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel draws, float64, of int64 tokens at a stream's int64 state."""
    bits = state + (tokens + 1) * _GAMMA
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        bits = (bits ^ _shift_right(bits, shift)) * factor
    uniform = (_shift_right(bits, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch shifts int64 arithmetically."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
