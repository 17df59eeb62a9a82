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
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from specbatch.pages import NULL_PAGE
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import Step, build_step
from specbatch.work import Work

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
        """Group tokens into gathers: a row's prompt chunk shares its keys, other tokens have their own.

        Drafted tokens are no part of a chunk: NaN in their values would reach the text before them.
        """
        counts: list[int] = step.key_counts.tolist()
        by_length: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        gathers: list[Gather] = []
        for row, (first, end) in enumerate(pairwise(step.row_starts)):
            chunk = range(first, step.text_ends[row])
            if len(chunk) > 1:
                gathers.append(_gather_chunk(step, row, chunk, _padded(counts[chunk[-1]])))
            for token in range(chunk.stop if len(chunk) > 1 else first, end):
                by_length[_padded(counts[token])].append((token, row))
        for padded, singles in by_length.items():
            size = max(1, GATHERED_KEYS // padded)
            for start in range(0, len(singles), size):
                gathers.append(_gather_singles(step, singles[start : start + size], padded))
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


def _padded(keys: int) -> int:
    """The number of keys that the kernel is given."""
    return -(-keys // KEY_BLOCK) * KEY_BLOCK


def _gather_chunk(step: Step, row: int, chunk: range, padded: int) -> Gather:
    """Committed tokens of one row (a prefill chunk) share its keys: those of the last of them."""
    tokens = torch.arange(chunk.start, chunk.stop, device=step.tokens.device)
    slots = _slots(step, [chunk[-1]], [row], padded)
    return Gather(tokens, slots, 1, _mask(step.key_counts[tokens], padded))


def _gather_singles(step: Step, singles: list[tuple[int, int]], padded: int) -> Gather:
    """Tokens with keys of their own, given with their rows."""
    chosen, rows = [token for token, _ in singles], [row for _, row in singles]
    tokens = torch.tensor(chosen, device=step.tokens.device)
    slots = _slots(step, chosen, rows, padded)
    return Gather(tokens, slots, len(chosen), _mask(step.key_counts[tokens], padded))


def _slots(step: Step, tokens: list[int], rows: list[int], padded: int) -> Tensor:
    """Slots of each token's keys in logical order; null slots behind, since what lies there may be NaN."""
    device = step.page_table.device
    positions = torch.arange(padded, device=device).repeat(len(tokens), 1)
    for i, token in enumerate(tokens if len(step.extra_positions) else ()):
        extra = step.extra_positions[step.extra_offsets[token] : step.extra_offsets[token + 1]]
        context = int(step.context_len[token])
        positions[i, context : context + len(extra)] = extra.long()
    table = step.page_table[rows]
    pages = table.gather(1, (positions // step.page_size).clamp_(max=table.shape[1] - 1))
    slots = pages * step.page_size + positions % step.page_size
    seen = torch.arange(padded, device=device) < step.key_counts[tokens].unsqueeze(1)
    return torch.where(seen, slots, NULL_PAGE).flatten()


def _mask(keys: Tensor, padded: int) -> Tensor:
    """0 for the first ``keys`` of each token, -inf behind."""
    hidden = torch.arange(padded, device=keys.device) >= keys.unsqueeze(1)
    mask = torch.zeros(hidden.shape, device=keys.device)
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
