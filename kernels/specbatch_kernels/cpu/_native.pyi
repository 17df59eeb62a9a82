"""The compiled extension. Addresses point at data of tensors that the caller has checked and keeps alive."""

from collections.abc import Sequence

class _Pool:
    """Opaque handle of a thread pool; the threads end with it."""

class _Decoder:
    """Opaque handle of a decoder; it does not keep the tensors alive."""

class _Head:
    """Opaque handle of a draft head; it does not keep the tensors alive."""

# Type, data, bias, rows, cols, inputs rounded to eight bits.
_Matrix = tuple[int, int, int, int, int, bool]

def best_isa() -> str: ...
def pool_new(workers: int, cores: Sequence[int] | None, spin_us: int, isa: str, /) -> _Pool: ...
def advise_large_pages(address: int, size: int, /) -> None: ...
def attention(
    pool: _Pool,
    data: tuple[int, int, int, int, float],
    indices: tuple[int, int, int, int, int],
    sizes: tuple[int, int, int, int],
    limits: tuple[int, int, int, int, int],
    /,
) -> None: ...
def probe(pool: _Pool, data: int, count: int, /) -> None: ...
def packed_bytes(kind: int, tiles: int, cols: int, /) -> int: ...
def pack(matrices: list[tuple[int, int, int, int, int]], /) -> None: ...
def linear(
    pool: _Pool,
    matrix: _Matrix,
    x: int,
    out: int,
    tokens: int,
    epilogue: int,
    norm: tuple[int, float],
    /,
) -> None: ...
def rms_norm(pool: _Pool, x: int, weight: int, out: int, tokens: int, width: int, eps: float, /) -> None: ...
def rotate_and_store(
    pool: _Pool,
    data: tuple[int, int, int, int],
    norms: tuple[int, int, float],
    cache: tuple[int, int],
    sizes: tuple[int, int, int, int],
    /,
) -> None: ...
def lookup(pool: _Pool, matrix: _Matrix, index: int, out: int, tokens: int, /) -> None: ...
def argmax(pool: _Pool, x: int, out: int, tokens: int, width: int, /) -> None: ...
def decoder_new(
    layers: tuple[tuple[object, ...], ...],
    embedding: _Matrix,
    head: _Matrix,
    vectors: tuple[int, int],
    sizes: tuple[int, int, int, int, int, int, int],
    eps: float,
    /,
) -> _Decoder: ...
def decoder_pass(
    pool: _Pool,
    decoder: _Decoder,
    batch: tuple[int, int, int, int, int, int],
    indices: tuple[int, int, int, int, int],
    limits: tuple[int, int, int, int, int],
    cache: tuple[int, int],
    outputs: tuple[int, int],
    /,
) -> None: ...
def head_new(
    matrices: tuple[_Matrix, ...],
    vectors: tuple[int, ...],
    sizes: tuple[int, int, int, int, int, int, int],
    flags: tuple[bool, bool],
    eps: float,
    /,
) -> _Head: ...
def draft_pass(
    pool: _Pool,
    head: _Head,
    batch: tuple[int, int, int, int, int, int],
    sources: tuple[int, int, int, int],
    indices: tuple[int, int, int, int, int],
    limits: tuple[int, int, int, int, int],
    cache: tuple[int, int],
    outputs: tuple[int, ...],
    chain: tuple[int, ...],
    /,
) -> None: ...
def sample(
    pool: _Pool,
    logits: int,
    logit_rows: int,
    width: int,
    rows: Sequence[tuple[int, float, float, float, float, int, int, tuple[int, ...]]],
    /,
) -> list[int]: ...
