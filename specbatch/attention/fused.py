"""Attention through torch's fused kernel, in a form whose result does not depend on the batch.

Each query token is a batch entry of its own whose "sequence" is the group of heads that share a
K/V head. The fused kernel then walks the keys in fixed blocks in logical order for that token alone.
Three paddings keep it in one numeric class on the CPU: the group to a multiple of 4 queries, the
keys to a multiple of 128 (masked), and nothing else varies. :func:`fused_attention_is_invariant`
checks that on this machine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import Step, Work, build_step

KEY_BLOCK = 128
"""Keys are padded to a multiple of this many."""
GROUP = 4
"""Queries that share a K/V head are padded to a multiple of this many."""
GATHERED_KEYS = 2048
"""Keys gathered at a time, so that the copies stay in the cache (2 MiB at 3 × 64 float32)."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Some tokens whose keys are copied together.

    Attributes:
        tokens: Indices into the step, int64 ``[n]``.
        slots: Where their keys are, int64 ``[rows × length]``.
        rows: Either n (one key sequence for each token) or 1 (all share it).
        mask: 0 or -inf, ``[n, 1, 1, length]``.
    """

    tokens: Tensor
    slots: Tensor
    rows: int
    mask: Tensor


class FusedAttention:
    """``torch.nn.functional.scaled_dot_product_attention`` on gathered keys."""

    @property
    def name(self) -> str:
        """Which kernel this is."""
        return "fused"

    def prepare(self, step: Step) -> FusedPass:
        """Group tokens into gathers: decoding rows by similar length, other rows one by one."""
        starts = step.row_starts
        lengths = [int(step.positions[end - 1]) + 1 for end in starts[1:]]
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        gathers: list[Gather] = []
        for row, length in enumerate(lengths):
            if starts[row + 1] - starts[row] == 1:
                by_length[-(-length // KEY_BLOCK) * KEY_BLOCK].append(row)
            else:
                gathers.append(_gather_row(step, row, length))
        for padded, rows in by_length.items():
            size = max(1, GATHERED_KEYS // padded)
            for first in range(0, len(rows), size):
                gathers.append(_gather_decoding(step, rows[first : first + size], padded))
        return FusedPass(tuple(gathers))


@dataclass(frozen=True, slots=True)
class FusedPass:
    """Attention of one step."""

    gathers: tuple[Gather, ...]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See :class:`specbatch.attention.base.AttentionPass`."""
        num_heads, head_dim = queries.shape[1:]
        num_kv_heads = keys.shape[1]
        group = num_heads // num_kv_heads
        padded = pad(queries.view(-1, num_kv_heads, group, head_dim), (0, 0, 0, -group % GROUP))
        out = torch.empty_like(padded)
        for gather in self.gathers:
            shape = (gather.rows, -1, num_kv_heads, head_dim)
            k = keys.index_select(0, gather.slots).view(shape).transpose(1, 2)
            v = values.index_select(0, gather.slots).view(shape).transpose(1, 2)
            n = len(gather.tokens)
            out[gather.tokens] = scaled_dot_product_attention(
                padded[gather.tokens],
                k.expand(n, -1, -1, -1),
                v.expand(n, -1, -1, -1),
                attn_mask=gather.mask.to(queries.dtype),
            )
        return out[:, :, :group].reshape(-1, num_heads, head_dim)


def _gather_row(step: Step, row: int, length: int) -> Gather:
    """All tokens of one row (a prefill chunk) share its keys."""
    padded = -(-length // KEY_BLOCK) * KEY_BLOCK
    tokens = torch.arange(step.row_starts[row], step.row_starts[row + 1], device=step.tokens.device)
    return Gather(tokens, _slots(step, [row], padded), 1, _mask(step.positions[tokens], padded))


def _gather_decoding(step: Step, rows: list[int], padded: int) -> Gather:
    """One token for each of these rows."""
    tokens = torch.tensor([step.row_starts[row] for row in rows], device=step.tokens.device)
    return Gather(tokens, _slots(step, rows, padded), len(rows), _mask(step.positions[tokens], padded))


def _slots(step: Step, rows: list[int], padded: int) -> Tensor:
    """Slots of positions 0 … padded-1 of each row; null slots behind the row's pages."""
    pages = -(-padded // step.page_size)
    table = step.page_table[rows]
    table = pad(table[:, :pages], (0, max(0, pages - table.shape[1])))
    within = torch.arange(step.page_size, device=table.device)
    return (table.unsqueeze(-1) * step.page_size + within).flatten(1)[:, :padded].flatten()


def _mask(positions: Tensor, padded: int) -> Tensor:
    hidden = torch.arange(padded, device=positions.device) > positions.unsqueeze(1)
    mask = torch.zeros(hidden.shape, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def fused_attention_is_invariant(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether a token's bits survive other rows, chunking and other page sizes on this machine."""
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 64, 129, 300, 640)
    width = max(lengths)
    shape = (len(lengths) * width, num_kv_heads, head_dim)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    queries = torch.randn((sum(lengths), num_heads, head_dim), generator=generator)
    rows = [_probe_row(i, n, width) for i, n in enumerate(lengths)]
    whole = FusedAttention().prepare(build_step([Work(r, r.committed) for r in rows], width))
    expected = whole(queries, keys, values)
    ends = torch.tensor(lengths).cumsum(0) - 1
    for row in rows:
        row.cached = row.committed - 1
    together = FusedAttention().prepare(build_step([Work(row, 1) for row in rows], width))
    same = torch.equal(together(queries[ends], keys, values), expected[ends])
    for row, end in zip(rows, ends, strict=True):
        alone = FusedAttention().prepare(build_step([Work(row, 1)], width))
        same = same and torch.equal(alone(queries[end : end + 1], keys, values)[0], expected[end])
    return same


def _probe_row(page: int, length: int, page_size: int) -> Row:
    """A row whose whole text lies in one page."""
    assert length <= page_size
    return Row(Prompt(page, "", None, "", (0,) * length, SamplingParams()), pages=[page])
