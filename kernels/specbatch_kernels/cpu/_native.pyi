"""The compiled extension. Addresses point at data of tensors that the caller has checked and keeps alive."""

from collections.abc import Sequence

class _Pool:
    """Opaque handle of a thread pool; the threads end with it."""

def best_isa() -> str: ...
def pool_new(workers: int, cores: Sequence[int] | None, spin_us: int, isa: str, /) -> _Pool: ...
def attention(
    pool: _Pool,
    data: tuple[int, int, int, int, float],
    indices: tuple[int, int, int, int, int],
    sizes: tuple[int, int, int, int],
    limits: tuple[int, int, int, int, int],
    /,
) -> None: ...
def probe(pool: _Pool, data: int, count: int, /) -> None: ...
