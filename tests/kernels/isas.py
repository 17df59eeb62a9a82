"""The instruction sets that kernels are tested with: all that this processor has."""

from __future__ import annotations

from specbatch_kernels.cpu import ThreadPool
from specbatch_kernels.cpu.pool import Isa


def _usable(isa: Isa) -> bool:
    try:
        ThreadPool(1, isa=isa).close()
    except ValueError:
        return False
    return True


_ALL: list[Isa] = ["amx", "avx512", "avx2", "portable"]
ISAS = [isa for isa in _ALL if _usable(isa)]
