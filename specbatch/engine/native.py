"""The native engine: loading a model once, then answering feeds with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from specbatch_kernels.cpu import ThreadPool, available

from specbatch.attention.base import Attention
from specbatch.attention.compiled import CompiledAttention
from specbatch.attention.fused import FusedAttention, fused_attention_is_invariant
from specbatch.attention.reference import ReferenceAttention
from specbatch.cache import KVStore, bytes_per_token
from specbatch.config import JobConfig
from specbatch.engine.executor import TorchExecutor
from specbatch.engine.feed import Feed, Host
from specbatch.engine.loop import Loop, Target
from specbatch.errors import UsageError
from specbatch.hardware.memory import available_bytes
from specbatch.hardware.threads import usable_cores
from specbatch.ledger import EngineStats
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import build_decoder, layer_shapes
from specbatch.models.files import ModelFiles
from specbatch.models.linear import choose_linear
from specbatch.models.weights import load_weights
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

KV_SHARE = 0.25
"""Share of the available memory that ``kv_memory = "auto"`` takes at most."""


class NativeEngine:
    """A decoder on one device behind the scheduler of :mod:`specbatch.engine.loop`.

    Args:
        target: The loaded model.
        encoder: Chat template and tokenizer.
        job: The job's settings.
        numerics: What can change a row's last bits.
    """

    def __init__(
        self, target: Target, encoder: PromptEncoder, job: JobConfig, numerics: Mapping[str, str]
    ) -> None:
        self.target = target
        self._job = job
        self.encoder = encoder
        self.numerics = numerics

    @property
    def config(self) -> ModelConfig:
        """Shape of the target model."""
        return self.target.config

    def run(self, feed: Feed, host: Host) -> EngineStats:
        """Answer every row of the feed, or stop early when the host asks for it."""
        return Loop(self.target, self._job, feed, host).run()


def open_engine(job: JobConfig, files: ModelFiles) -> NativeEngine:
    """Load a model and everything around it.

    Raises:
        ModelError: The model cannot be run by this engine.
        UsageError: The device is not there, or the K/V memory is too small.
    """
    device = _device(job)
    torch.set_num_threads(job.threads or usable_cores())
    config = ModelConfig.from_directory(files.directory)
    dtype = _dtype(job, device)
    make_linear = choose_linear(device, layer_shapes(config))
    attention = _attention(config, device)
    decoder = build_decoder(config, load_weights(files, config), make_linear, dtype, device)
    executor = TorchExecutor(decoder, _store(job, config, dtype, device), attention, job.page_size)
    tokenizer = Tokenizer.load(files.directory)
    encoder = PromptEncoder(
        tokenizer, ChatTemplate.load(files.directory), config, job.system, job.raw_prompts
    )
    numerics = {
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "linear": make_linear.__name__,
        "attention": attention.name,
    }
    return NativeEngine(Target(config, tokenizer, executor), encoder, job, numerics)


def _device(job: JobConfig) -> torch.device:
    if job.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is usable here", "use --device cpu")
    return torch.device("cuda" if job.device != "cpu" and torch.cuda.is_available() else "cpu")


def _dtype(job: JobConfig, device: torch.device) -> torch.dtype:
    if job.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if device.type == "cpu" and job.dtype != "float32":
        raise UsageError(f"--dtype {job.dtype} on the CPU is not supported", "use --dtype float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[job.dtype]


def _attention(config: ModelConfig, device: torch.device) -> Attention:
    """The fastest kernel that is exact here; exactness is promised on the CPU only."""
    if device.type != "cpu":
        return FusedAttention()
    if available():
        return CompiledAttention(ThreadPool(torch.get_num_threads()))
    if fused_attention_is_invariant(config.num_heads, config.num_kv_heads, config.head_dim):
        return FusedAttention()
    return ReferenceAttention()


def _store(job: JobConfig, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> KVStore:
    """K/V memory for the rows in flight, within the budget.

    Raises:
        UsageError: The budget holds less than two pages.
    """
    shape = (config.num_layers, 1, config.num_kv_heads, config.head_dim)
    page_bytes = job.page_size * bytes_per_token(shape, dtype)
    useful = job.max_rows_in_flight * -(-config.max_context // job.page_size) + 1
    pages = min(useful, _budget(job, device) // page_bytes)
    if pages < 2:
        raise UsageError(
            f"K/V memory holds {pages} pages of {page_bytes:,} bytes, at least 2 are needed",
            "raise --kv-memory or lower --page-size",
        )
    return KVStore((config.num_layers, pages * job.page_size, *shape[2:]), dtype, device)


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
