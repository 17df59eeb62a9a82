"""CPU kernels of specbatch: quantised linear layers and paged tree attention, independent of the batch.

The compiled part is optional. Where :func:`available` is False, :func:`unavailable_reason` says why
and every kernel's twin in torch (``*_reference``, same signature) still works.
"""

from specbatch_kernels.cpu.attention import AttentionKeys, KvCache, paged_attention, paged_attention_reference
from specbatch_kernels.cpu.linear import (
    PackedMatrix,
    WeightType,
    gated_linear,
    gated_linear_reference,
    linear,
    linear_reference,
    pack,
    pack_gated,
    unpack,
)
from specbatch_kernels.cpu.native import KernelsUnavailableError, available, unavailable_reason
from specbatch_kernels.cpu.pool import ThreadPool
from specbatch_kernels.cpu.probe import multiply_add_rate, read_bandwidth

__all__ = [
    "AttentionKeys",
    "KernelsUnavailableError",
    "KvCache",
    "PackedMatrix",
    "ThreadPool",
    "WeightType",
    "available",
    "gated_linear",
    "gated_linear_reference",
    "linear",
    "linear_reference",
    "multiply_add_rate",
    "pack",
    "pack_gated",
    "paged_attention",
    "paged_attention_reference",
    "read_bandwidth",
    "unavailable_reason",
    "unpack",
]
