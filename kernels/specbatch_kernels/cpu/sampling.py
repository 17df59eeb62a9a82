"""The next token of many rows, filters and addressed Gumbel noise included, on CPU, and the torch twin.

The rule: after repetition penalty, temperature, top-k, top-p and min-p (in this order, each acting on
what the one before kept, tokens tied with the last one kept are kept too), the token is
``argmax(log p + g)``, where g is Gumbel noise addressed by (stream state, token), or 0 at temperature 0.
Noise is evaluated only for tokens that can still win.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.pool import ThreadPool

# SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, figure 16), constants as signed 64-bit integers.
_GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row samples; every tensor has one element per row unless it says otherwise.

    Attributes:
        temperature: float64, 0 for the most likely token (the lowest of equals).
        penalty: float64, repetition penalty on the history, 1 for none.
        top_p: float64, 1 for none.
        min_p: float64, 0 for none.
        top_k: int64, 0 for none.
        state: int64, SplitMix64 state of the row's stream at this position; token t reads output t.
        history_offsets: int64 [rows + 1], bounds of each row's part of ``history``.
        history: int64, distinct tokens of each row.
    """

    temperature: torch.Tensor
    penalty: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    state: torch.Tensor
    history_offsets: torch.Tensor
    history: torch.Tensor


def sample(logits: torch.Tensor, rows: SamplingRows, out: torch.Tensor, pool: ThreadPool) -> None:
    """Choose a token for every row.

    Args:
        logits: float32 [rows, vocabulary].
        rows: How to choose.
        out: int64 [rows], overwritten; -1 where the logits hold a NaN or their maximum is not finite.
        pool: Threads and instruction set to compute with; each row's choice is one worker's.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or a token does not exist.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    count, width = logits.shape
    if width < 1:
        raise ValueError("logits: a row needs at least one token to choose from")
    params = (
        native.address("temperature", rows.temperature, torch.float64, (count,)),
        native.address("penalty", rows.penalty, torch.float64, (count,)),
        native.address("top_p", rows.top_p, torch.float64, (count,)),
        native.address("min_p", rows.min_p, torch.float64, (count,)),
        native.address("top_k", rows.top_k, torch.int64, (count,)),
        native.address("state", rows.state, torch.int64, (count,)),
    )
    history = (
        native.address("history_offsets", rows.history_offsets, torch.int64, (count + 1,)),
        native.address("history", rows.history, torch.int64, (None,)),
        rows.history.numel(),
    )
    logits_address = native.address("logits", logits, torch.float32, (count, width))
    out_address = native.address("out", out, torch.int64, (count,))
    _native.sample(pool.handle, logits_address, out_address, params, history, count, width)


def sample_reference(
    logits: torch.Tensor, rows: SamplingRows, out: torch.Tensor, pool: ThreadPool | None
) -> None:
    """Twin of :func:`sample` in torch, one row at a time, everything evaluated for every token."""
    for i, row in enumerate(logits):
        if not bool(torch.isfinite(row.max())):
            out[i] = -1
            continue
        start, end = rows.history_offsets[i : i + 2].tolist()
        values = _penalised(row.double(), rows.history[start:end], rows.penalty[i])
        if rows.temperature[i] > 0:
            values = (values - values.max()) / rows.temperature[i]
            values = torch.where(values >= _threshold(values, rows, i), values, -torch.inf)
            values = values + gumbel(rows.state[i], torch.arange(len(values)))
        out[i] = values.argmax()


def _penalised(values: torch.Tensor, history: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Repetition penalty of CTRL (Keskar et al. 2019, section 4.1)."""
    seen = values[history]
    limit = torch.finfo(values.dtype).max
    moved = torch.where(seen > 0, seen / penalty, seen * penalty).clamp(-limit, limit)
    return values if penalty == 1 else values.index_copy(0, history, moved)


def _threshold(values: torch.Tensor, rows: SamplingRows, i: int) -> torch.Tensor:
    """Smallest log weight that all filters keep."""
    threshold = torch.tensor(-torch.inf, dtype=torch.float64)
    if 0 < rows.top_k[i] < len(values):
        threshold = values.topk(int(rows.top_k[i])).values[-1]
    if rows.top_p[i] < 1:
        kept = values[values >= threshold].sort(descending=True).values
        mass = kept.exp().cumsum(0)
        needed = int(torch.searchsorted(mass, rows.top_p[i] * mass[-1]))
        threshold = kept[min(needed, len(kept) - 1)]
    return torch.maximum(threshold, rows.min_p[i].log())


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
