"""What the processor can do at most, measured: the floor that kernel times are compared with."""

from __future__ import annotations

import time

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.pool import ThreadPool

MULTIPLY_ADDS_PER_ITERATION = 12 * 8


def read_bandwidth(pool: ThreadPool, data: torch.Tensor) -> float:
    """Bytes per second at which all workers together read ``data`` once.

    Args:
        pool: The workers.
        data: float32, one dimension; much larger than the last-level cache to measure memory.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    start = time.perf_counter()
    _native.probe(pool.handle, native.address("data", data, torch.float32, (data.numel(),)), data.numel())
    return data.numel() * data.element_size() / (time.perf_counter() - start)


def multiply_add_rate(pool: ThreadPool, iterations: int = 200_000) -> float:
    """Float32 multiply-adds per second of all workers together, nothing read from memory."""
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    start = time.perf_counter()
    _native.probe(pool.handle, 0, iterations)
    return pool.workers * iterations * MULTIPLY_ADDS_PER_ITERATION / (time.perf_counter() - start)
