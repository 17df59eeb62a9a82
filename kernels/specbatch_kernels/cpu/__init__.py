"""CPU kernels of specbatch: quantised linear layers and paged tree attention, independent of the batch.

The compiled part is optional. Where :func:`available` is False, :func:`unavailable_reason` says why
and every kernel's twin in torch (``*_reference``, same signature) still works.
"""

from specbatch_kernels.cpu.attention import AttentionKeys, KvCache, paged_attention, paged_attention_reference
from specbatch_kernels.cpu.decoder import (
    DecoderBatch,
    DecoderLayer,
    DecoderOutputs,
    DecoderParts,
    PackedDecoder,
    decoder_pass,
    decoder_pass_reference,
)
from specbatch_kernels.cpu.draft import draft_pass, draft_pass_dense, draft_pass_reference
from specbatch_kernels.cpu.draft_batch import NOT_DRAFTED, ChainLevels, DraftBatch, DraftOutputs
from specbatch_kernels.cpu.draft_head import DenseHead, HeadMatrices, HeadParts, PackedHead
from specbatch_kernels.cpu.linear import (
    gated_linear,
    gated_linear_reference,
    linear,
    linear_reference,
)
from specbatch_kernels.cpu.lookup import argmax, argmax_reference, lookup, lookup_reference
from specbatch_kernels.cpu.memory import advise_large_pages
from specbatch_kernels.cpu.native import KernelsUnavailableError, available, unavailable_reason
from specbatch_kernels.cpu.norm import RmsNorm, rms_norm, rms_norm_reference
from specbatch_kernels.cpu.packing import (
    Activations,
    PackedMatrix,
    Packer,
    WeightType,
    pack,
    pack_gated,
    unpack,
)
from specbatch_kernels.cpu.pool import ThreadPool
from specbatch_kernels.cpu.probe import multiply_add_rate, read_bandwidth
from specbatch_kernels.cpu.rotary import Placement, Rotary, rotate_and_store, rotate_and_store_reference
from specbatch_kernels.cpu.sampling import SamplingRow, sample, sample_reference

__all__ = [
    "NOT_DRAFTED",
    "Activations",
    "AttentionKeys",
    "ChainLevels",
    "DecoderBatch",
    "DecoderLayer",
    "DecoderOutputs",
    "DecoderParts",
    "DenseHead",
    "DraftBatch",
    "DraftOutputs",
    "HeadMatrices",
    "HeadParts",
    "KernelsUnavailableError",
    "KvCache",
    "PackedDecoder",
    "PackedHead",
    "PackedMatrix",
    "Packer",
    "Placement",
    "RmsNorm",
    "Rotary",
    "SamplingRow",
    "ThreadPool",
    "WeightType",
    "advise_large_pages",
    "argmax",
    "argmax_reference",
    "available",
    "decoder_pass",
    "decoder_pass_reference",
    "draft_pass",
    "draft_pass_dense",
    "draft_pass_reference",
    "gated_linear",
    "gated_linear_reference",
    "linear",
    "linear_reference",
    "lookup",
    "lookup_reference",
    "multiply_add_rate",
    "pack",
    "pack_gated",
    "paged_attention",
    "paged_attention_reference",
    "read_bandwidth",
    "rms_norm",
    "rms_norm_reference",
    "rotate_and_store",
    "rotate_and_store_reference",
    "sample",
    "sample_reference",
    "unavailable_reason",
    "unpack",
]
