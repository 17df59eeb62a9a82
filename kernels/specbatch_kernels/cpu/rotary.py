"""Rotary embedding and the write to the K/V cache, on CPU, and the torch twin."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.attention import KvCache
from specbatch_kernels.cpu.norm import RmsNorm, rms_norm_reference
from specbatch_kernels.cpu.pool import ThreadPool


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tokens of a pass stand.

    Attributes:
        positions: int64 [tokens] row of the rotary table.
        slots: int64 [tokens] slot of the cache each token is stored in, all different.
    """

    positions: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """How queries and keys are turned.

    Attributes:
        table: float32 [max positions, 2, head_dim / 2]: cosines, then sines.
        q_norm: Norm of every query before it is turned (Qwen3), or None.
        k_norm: The same for keys; with ``q_norm`` or not at all, and with the same eps.
    """

    table: torch.Tensor
    q_norm: RmsNorm | None = None
    k_norm: RmsNorm | None = None


def rotate_and_store(
    heads: torch.Tensor, rotary: Rotary, placement: Placement, cache: KvCache, pool: ThreadPool
) -> None:
    """Turn queries in place; write turned keys, and values as they are, to the cache.

    Half-split layout (Su et al. 2021 with pairs d, d + head_dim / 2). The key part of ``heads`` may
    hold anything afterwards.

    Args:
        heads: float32 [tokens, num_heads + 2 * num_kv_heads, head_dim]: queries, keys, values.
        rotary: Table and norms.
        placement: Positions and slots of the tokens.
        cache: Where keys and values go.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or an index is out of range.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, all_heads, dim = heads.shape
    slots, kv_heads, _ = cache.k.shape
    if dim % 2 or all_heads <= 2 * kv_heads:
        raise ValueError(f"heads {tuple(heads.shape)} cannot hold queries and {kv_heads} keys and values")
    _check_range("positions", placement.positions, rotary.table.shape[0])
    _check_range("slots", placement.slots, slots)
    norms = [_norm_address(norm, dim) for norm in (rotary.q_norm, rotary.k_norm)]
    _native.rotate_and_store(
        pool.handle,
        (
            native.address("heads", heads, torch.float32, (tokens, all_heads, dim)),
            native.address("table", rotary.table, torch.float32, (None, 2, dim // 2)),
            native.address("positions", placement.positions, torch.int64, (tokens,)),
            native.address("slots", placement.slots, torch.int64, (tokens,)),
        ),
        (norms[0], norms[1], 0.0 if rotary.q_norm is None else rotary.q_norm.eps),
        (
            native.address("k", cache.k, torch.float32, (slots, kv_heads, dim)),
            native.address("v", cache.v, torch.float32, (slots, kv_heads, dim)),
        ),
        (tokens, all_heads - 2 * kv_heads, kv_heads, dim),
    )


def _norm_address(norm: RmsNorm | None, dim: int) -> int:
    return 0 if norm is None else native.address("norm", norm.weight, torch.float32, (dim,))


def _check_range(name: str, index: torch.Tensor, limit: int) -> None:
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < limit:
        raise ValueError(f"{name}: {index.tolist()} are not all within 0 .. {limit - 1}")


def rotate_and_store_reference(
    heads: torch.Tensor, rotary: Rotary, placement: Placement, cache: KvCache, pool: ThreadPool | None
) -> None:
    """Twin of :func:`rotate_and_store` in torch; computes in the type of ``heads``."""
    kv_heads = cache.k.shape[1]
    sizes = [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads]
    q, k, v = heads.split_with_sizes(sizes, dim=1)
    if rotary.q_norm is not None:
        rms_norm_reference(q, rotary.q_norm, q, pool)
    if rotary.k_norm is not None:
        rms_norm_reference(k, rotary.k_norm, k, pool)
    cos, sin = rotary.table[placement.positions].to(heads.dtype).unsqueeze(2).unbind(1)
    for x, out in ((q, q), (k, k)):
        first, second = x.chunk(2, dim=-1)
        out.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
    cache.k[placement.slots] = k.to(cache.k.dtype)
    cache.v[placement.slots] = v.to(cache.v.dtype)
