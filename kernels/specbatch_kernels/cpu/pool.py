"""The threads that run the kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from specbatch_kernels.cpu import native

if TYPE_CHECKING:
    from specbatch_kernels.cpu import _native as _types

Isa = Literal["auto", "amx", "avx512", "avx2", "portable"]

# Sets whose results are another's, to the last bit: they add the same numbers in the same order, only more
# outputs at a time.
_SAME_BITS = {"amx": "avx2", "avx512": "avx2"}


class ThreadPool:
    """A fixed set of workers that run one kernel at a time together.

    The calling thread is worker 0 and the pool owns the others. While a kernel runs, workers that
    wait for each other spin for ``spin_us`` and then park, and so do those that wait for the next
    kernel: from then on an idle pool costs nothing. The GIL is released while kernels run, and two
    pools on disjoint cores run at the same time. Calls from several threads into one pool take turns.
    A pool does not survive ``fork``.

    Args:
        workers: Number of workers, the caller included; at least 1.
        cores: One CPU number per worker to pin it to (Linux only; the caller is pinned only while a
            kernel runs); None leaves placement to the system. ``"auto"`` pins one worker to each
            usable CPU when there are as many workers as CPUs, and none otherwise: next to a busy
            process the system keeps putting two workers that wait for each other on one CPU.
        isa: ``"auto"`` takes the best instruction set the processor has. ``"portable"`` differs from
            the others in its last bits, so :attr:`numerics` is part of what a result depends on.
        spin_us: Microseconds a waiting worker spins before it parks. On shared machines waking a
            parked one can take longer than what there is to do between two kernels of a run.

    Raises:
        KernelsUnavailableError: The extension was not compiled.
        ValueError: Bad worker count, cores or instruction set.
        RuntimeError: The system refused to start the threads.
    """

    def __init__(
        self,
        workers: int,
        cores: Sequence[int] | Literal["auto"] | None = "auto",
        *,
        isa: Isa = "auto",
        spin_us: int = 1000,
    ) -> None:
        native.require()
        from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

        if cores == "auto":
            cores = _all_cores(workers)
        if cores is not None and len(cores) != workers:
            raise ValueError(f"cores: expected one per worker ({workers}), got {len(cores)}")
        self.workers = workers
        self.cores = None if cores is None else tuple(cores)
        self.isa: str = _native.best_isa() if isa == "auto" else isa
        self._handle: _types._Pool | None = _native.pool_new(workers, self.cores, spin_us, self.isa)

    @property
    def numerics(self) -> str:
        """What of the instruction set a result depends on: the first set that had these bits."""
        return _SAME_BITS.get(self.isa, self.isa)

    @property
    def handle(self) -> _types._Pool:
        """The native pool.

        Raises:
            ValueError: The pool is closed.
        """
        if self._handle is None:
            raise ValueError("the thread pool is closed")
        return self._handle

    def close(self) -> None:
        """Ends the threads once no kernel is running; closing twice is harmless."""
        self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _all_cores(workers: int) -> list[int] | None:
    """The CPUs this process may use if there is exactly one for each worker."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable if len(usable) == workers else None
