"""Which executor a job gets: device, number format, kernels, K/V memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from specbatch_kernels.cpu import PackedDecoder, ThreadPool

from specbatch.attention.base import Attention
from specbatch.attention.fused import FusedAttention, fused_attention_is_invariant
from specbatch.attention.reference import ReferenceAttention
from specbatch.cache import KVStore, bytes_per_token
from specbatch.config import JobConfig
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.device import (
    activations_of,
    device_of,
    dtype_of,
    missed_kernels,
    uses_kernels,
)
from specbatch.engine.executor import Executor, TorchExecutor
from specbatch.errors import UsageError
from specbatch.hardware.memory import available_bytes
from specbatch.hardware.threads import usable_cores
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import build_decoder, layer_shapes
from specbatch.models.files import ModelFiles
from specbatch.models.linear import choose_linear
from specbatch.models.packed import PackedWeights, build_packed
from specbatch.models.weights import load_stored, load_weights
from specbatch.startup import UNTOUCHED, load_deferred

KV_SHARE = 0.25
"""Share of the available memory that ``kv_memory = "auto"`` takes at most."""

SCRATCH_SHARE = 0.25
"""Share of what is available then that drafted tokens may take while they are verified."""

_LOGITS_COPIES = 2


@dataclass(frozen=True, slots=True)
class DraftNeeds:
    """What a drafter asks of the target's executor.

    Attributes:
        captured: Layers whose inputs a pass reports.
        page_bytes: Memory of the drafter for each page of the target's store.
        fixed_bytes: Memory of the drafter whatever the number of pages.
    """

    captured: tuple[int, ...] = ()
    page_bytes: int = 0
    fixed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """An executor and what there is to say about it.

    Attributes:
        numerics: What of it can change a row's last bits.
        kernels: Which compute, instruction set included; two of them may have the same numerics.
        notice: Why it is slower than it could be; empty when it is not.
    """

    executor: Executor
    numerics: Mapping[str, str]
    kernels: str
    notice: str = ""


def build_executor(
    job: JobConfig,
    files: ModelFiles,
    config: ModelConfig,
    needs: DraftNeeds = DraftNeeds(),
    weights: PackedWeights | None = None,
) -> Built:
    """Load the weights into the fastest exact executor this machine has.

    Args:
        job: Device, number format, kernels, K/V memory.
        files: The model.
        config: Its shape.
        needs: Of what will draft for it.
        weights: Its weights where they are being packed already; otherwise they are read now.

    Raises:
        ModelError: The weights cannot be used.
        UsageError: Device, number format or kernels are not there, or the K/V memory is too small.
    """
    device = device_of(job)
    dtype = dtype_of(job, device)
    threads = job.threads or usable_cores()
    torch.set_num_threads(threads)
    store = _store(job, config, dtype, device, needs)
    here = {"device": device.type, "dtype": str(dtype).removeprefix("torch.")}
    if uses_kernels(job, device):
        pool = ThreadPool(threads)
        if weights is None:
            stored = load_stored(files, config, job.quantize)
            decoder = build_packed(config, stored, needs.captured, activations_of(job))
        else:
            decoder = weights.decoder(needs.captured)
        compiled = CompiledExecutor(decoder, store, pool)
        rounded = _rounded(job, decoder)
        return Built(
            compiled,
            {**here, "kernels": f"compiled-{pool.numerics}{rounded}"},
            f"compiled-{pool.isa}{rounded}",
        )
    load_deferred(*UNTOUCHED)  # random generators of torch want it, and who knows what else
    make_linear = choose_linear(device, layer_shapes(config))
    attention = _attention(config, device)
    values = load_weights(files, config, job.quantize)
    plain = build_decoder(config, values, make_linear, dtype, device, needs.captured)
    executor = TorchExecutor(plain, store, attention)
    kernels = f"torch-{make_linear.__name__}-{attention.name}"
    return Built(executor, {**here, "kernels": kernels}, kernels, missed_kernels(device))


def build_beside(target: Executor, files: ModelFiles, config: ModelConfig, more_pages: int) -> Executor:
    """Another model on the target's device, with the target's page numbers and its threads.

    Args:
        target: Made by :func:`build_executor`.
        files: The other model.
        config: Its shape.
        more_pages: Pages behind those of the target.

    Raises:
        ModelError: The weights cannot be used.
    """
    assert isinstance(target, CompiledExecutor | TorchExecutor), "not one of ours"
    theirs = target.store.keys
    device, dtype = theirs.device, theirs.dtype
    pages = target.store.num_pages + more_pages
    shape = (config.num_layers, pages, config.num_kv_heads, config.head_dim)
    store = KVStore.zeros(shape, target.store.page_size, dtype, device)
    if isinstance(target, CompiledExecutor):
        stored, rounded = load_stored(files, config), target.decoder.activations
        return CompiledExecutor(build_packed(config, stored, activations=rounded), store, target.pool)
    make_linear = choose_linear(device, layer_shapes(config))
    decoder = build_decoder(config, load_weights(files, config), make_linear, dtype, device)
    return TorchExecutor(decoder, store, _attention(config, device))


def _rounded(job: JobConfig, decoder: PackedDecoder) -> str:
    """What the rounding of inputs adds to the name of the kernels.

    Raises:
        UsageError: It is asked for and there is nothing that could be rounded.
    """
    if decoder.activations == "int8":
        return "-int8"
    if job.activations == "int8":
        raise UsageError(
            "--activations int8 is for quantised weights, and the weights of this model are not quantised",
            "leave --activations out; --quantize q8_0 would quantise the weights, which changes the model",
        )
    return ""


def drafts_in_memory(job: JobConfig, config: ModelConfig) -> int:
    """Drafted tokens of a pass whose logits fit into memory beside the model and its keys and values.

    Args:
        job: The device.
        config: Shape of the target, which is loaded.
    """
    device = device_of(job)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    per_token = _LOGITS_COPIES * 4 * config.vocab_size
    return 2**31 if free is None else max(1, int(SCRATCH_SHARE * free) // per_token)


def _attention(config: ModelConfig, device: torch.device) -> Attention:
    """The fastest kernel that is exact here; exactness is promised on the CPU only."""
    shape = (config.num_heads, config.num_kv_heads, config.head_dim)
    if device.type != "cpu" or fused_attention_is_invariant(*shape):
        return FusedAttention()
    return ReferenceAttention()


def _store(
    job: JobConfig, config: ModelConfig, dtype: torch.dtype, device: torch.device, needs: DraftNeeds
) -> KVStore:
    """K/V memory for the rows in flight, within the budget that they share with their drafts.

    Raises:
        UsageError: The budget holds less than two pages.
    """
    shape = (config.num_layers, config.num_kv_heads, config.head_dim)
    page_bytes = job.page_size * bytes_per_token(shape, dtype)
    useful = job.max_rows_in_flight * -(-config.max_context // job.page_size) + 1
    left = _budget(job, device) - needs.fixed_bytes
    pages = max(0, min(useful, left // (page_bytes + needs.page_bytes)))
    if pages < 2:
        drafts = ", drafts included" if needs.page_bytes else ""
        raise UsageError(
            f"K/V memory holds {pages} pages of {page_bytes + needs.page_bytes:,} bytes{drafts}, "
            "at least 2 are needed",
            f"raise --kv-memory or lower --page-size{', or use --policy off' if drafts else ''}",
        )
    return KVStore.zeros((config.num_layers, pages, *shape[1:]), job.page_size, dtype, device)


def _budget(job: JobConfig, device: torch.device) -> int:
    """Bytes for keys and values."""
    if job.kv_memory != "auto":
        return job.kv_memory
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(KV_SHARE * free)
    available = available_bytes()
    if available is None:
        raise UsageError("this system does not say how much memory is free", "set --kv-memory, e.g. 2GiB")
    return int(KV_SHARE * available)
