"""Threads: how many, and how they wait. Importable without torch, since it must come before it."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

SPIN_COUNT = 2000
"""Loop turns (some microseconds) an OpenMP worker spins before it parks."""


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Make OpenMP workers park soon instead of spinning; what the user has set stays.

    On cores shared with another process the default (spin for milliseconds) makes workers burn the
    time slices their partners need, and throughput collapses. Must run before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(usable_core_numbers())


def usable_core_numbers() -> list[int]:
    """Cores this process may run on, as the system numbers them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work on one thread: many small operations cost less than waking a second one."""
    import torch  # noqa: PLC0415 - this module must be importable before torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
