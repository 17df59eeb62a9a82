"""Paged tree attention on CPU and its torch twin.

Token t attends to positions ``0 .. context_len[t] - 1`` of its row and then to its explicit
positions (tree ancestors in depth order, itself last). Keys are reduced in that logical order in
fixed blocks, so a result depends on nothing but the sequence of keys and values: page size, slots,
batch mates and threads change no bit, and a tree node equals the plain token with the same keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.pool import ThreadPool


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of one layer.

    Attributes:
        k: float32 [num_slots, num_kv_heads, head_dim].
        v: Same shape.
        page_size: Slots per page; page p holds slots ``p * page_size`` onwards.
    """

    k: torch.Tensor
    v: torch.Tensor
    page_size: int


@dataclass(frozen=True, slots=True)
class AttentionKeys:
    """Which keys every token of a pass attends to; all int32.

    Attributes:
        page_table: [rows, max_pages] page of a row's positions; entries that are not used may hold anything.
        token_row: [tokens] row of the page table.
        context_len: [tokens] the token sees row positions below this.
        extra_offsets: [tokens + 1] bounds of each token's part of ``extra_positions``.
        extra_positions: [extras] further row positions, seen after the context, in order.
    """

    page_table: torch.Tensor
    token_row: torch.Tensor
    context_len: torch.Tensor
    extra_offsets: torch.Tensor
    extra_positions: torch.Tensor

    def addresses(self, tokens: int) -> tuple[int, int, int, int, int]:
        """The tensors as the extension takes them, checked.

        Raises:
            ValueError: A tensor has the wrong type, shape or layout.
        """
        return (
            native.address("page_table", self.page_table, torch.int32, (None, None)),
            native.address("token_row", self.token_row, torch.int32, (tokens,)),
            native.address("context_len", self.context_len, torch.int32, (tokens,)),
            native.address("extra_offsets", self.extra_offsets, torch.int32, (tokens + 1,)),
            native.address("extra_positions", self.extra_positions, torch.int32, (None,)),
        )

    def limits(self, page_size: int, slots: int) -> tuple[int, int, int, int, int]:
        """What the indices are checked against by the extension.

        Raises:
            ValueError: The page size is not positive.
        """
        if page_size < 1:
            raise ValueError(f"page size {page_size} is not positive")
        rows, max_pages = self.page_table.shape
        return rows, max_pages, page_size, slots, self.extra_positions.numel()


def paged_attention(
    q: torch.Tensor, cache: KvCache, keys: AttentionKeys, scale: float, out: torch.Tensor, pool: ThreadPool
) -> None:
    """Softmax attention of every token over its keys.

    Consecutive tokens of one row share the loads of their common keys, so keep a row's tokens
    together. A token without keys gets zeros.

    Args:
        q: Queries, float32 [tokens, num_heads, head_dim].
        cache: Keys and values; query heads ``h * g .. (h + 1) * g - 1`` use K/V head h.
        keys: Which keys each token sees.
        scale: Factor on the scores, usually ``head_dim ** -0.5``.
        out: Result, float32 [tokens, num_heads, head_dim], overwritten.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or an index is out of range.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, heads, dim = q.shape
    slots, kv_heads, _ = cache.k.shape
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key heads")
    data = (
        native.address("q", q, torch.float32, (tokens, heads, dim)),
        native.address("k", cache.k, torch.float32, (slots, kv_heads, dim)),
        native.address("v", cache.v, torch.float32, (slots, kv_heads, dim)),
        native.address("out", out, torch.float32, (tokens, heads, dim)),
        scale,
    )
    sizes = (tokens, heads, kv_heads, dim)
    limits = keys.limits(cache.page_size, slots)
    _native.attention(pool.handle, data, keys.addresses(tokens), sizes, limits)


def paged_attention_reference(
    q: torch.Tensor,
    cache: KvCache,
    keys: AttentionKeys,
    scale: float,
    out: torch.Tensor,
    pool: ThreadPool | None,
) -> None:
    """Twin of :func:`paged_attention` in torch, one token at a time; computes in the type of ``q``."""
    group = q.shape[1] // cache.k.shape[1]
    for t in range(q.shape[0]):
        row = keys.page_table[keys.token_row[t]].long()
        extra = keys.extra_positions[keys.extra_offsets[t] : keys.extra_offsets[t + 1]].long()
        positions = torch.cat([torch.arange(int(keys.context_len[t])), extra])
        if positions.numel() == 0:
            out[t] = 0
            continue
        slots = row[positions // cache.page_size] * cache.page_size + positions % cache.page_size
        k = cache.k[slots].repeat_interleave(group, dim=1)
        v = cache.v[slots].repeat_interleave(group, dim=1)
        weights = torch.softmax(torch.einsum("hd,khd->hk", q[t], k.to(q.dtype)) * scale, dim=-1)
        out[t] = torch.einsum("hk,khd->hd", weights, v.to(q.dtype))
