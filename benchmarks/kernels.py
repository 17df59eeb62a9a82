"""The compiled CPU kernels against their floors and against torch, on the matrices of the default model.

Usage: ``python benchmarks/kernels.py [--tokens 1 4 8 16 32 64] [--threads 2] [--repeats 9]``.

The floor of a kernel is what the machine cannot beat: the bytes it must read over the measured read
bandwidth, or its multiply-adds over the measured multiply-add rate, whichever is longer (the best of several
probes each). Ours and torch take turns; medians are shown. ``torch`` is ``torch.nn.functional.linear`` in
float32 on the same weights.

The lines of single kernels hand every call over to the threads on its own, some microseconds each. ``whole
pass`` is how the engine computes: one hand-over, all layers with norms, rotary and attention over a single
key, and the LM head; torch's side of it is the linear layers alone. The first line compares this machine with
the one that the project's bars were set on: torch's time for all linear layers and one token.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import scaled_dot_product_attention, silu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from specbatch_kernels.cpu import (
    AttentionKeys,
    DecoderBatch,
    DecoderOutputs,
    KvCache,
    PackedDecoder,
    PackedMatrix,
    Placement,
    ThreadPool,
    decoder_pass,
    gated_linear,
    linear,
    multiply_add_rate,
    paged_attention,
    read_bandwidth,
    unpack,
)

from specbatch.hardware.threads import prepare_environment, usable_cores
from specbatch.models.config import ModelConfig
from specbatch.models.packed import build_packed
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_stored

CONTEXTS = ((1, 512), (16, 512), (32, 512))
PROBE_ITERATIONS = 2_000_000  # some milliseconds, beside which the hand-over to the threads is nothing
REFERENCE_MS = 41.0
"""Torch, all linear layers of the default model, one token, on the machine that the bars were set on."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the floors are made of: bytes and multiply-adds per second."""

    pool: ThreadPool
    bandwidth: float
    rate: float

    def floor(self, num_bytes: float, multiply_adds: float) -> float:
        """Seconds that no kernel can beat."""
        return max(num_bytes / self.bandwidth, multiply_adds / self.rate)


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table.

    Attributes:
        ours: Runs our kernel once.
        torch: Runs torch's once.
    """

    name: str
    tokens: int
    floor: float
    ours: Callable[[], object]
    torch: Callable[[], object]


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def linear_cases(decoder: PackedDecoder, machine: Machine, tokens: int) -> Iterator[Case]:
    """Every matrix of all layers, the LM head, and their sum."""
    groups: dict[str, list[PackedMatrix]] = {
        "qkv": [layer.qkv for layer in decoder.layers],
        "output": [layer.output for layer in decoder.layers],
        "gate_up + SiLU": [layer.gate_up for layer in decoder.layers],
        "down": [layer.down for layer in decoder.layers],
        "LM head": [decoder.parts.head],
    }
    cases = [_matrices(name, matrices, machine, tokens) for name, matrices in groups.items()]
    yield from cases
    floor = sum(case.floor for case in cases)

    def theirs() -> None:
        for case in cases:
            case.torch()

    yield Case("all linear layers", tokens, floor, lambda: [case.ours() for case in cases], theirs)
    yield Case("whole pass", tokens, floor, _pass(decoder, machine.pool, tokens), theirs)


def _pass(decoder: PackedDecoder, pool: ThreadPool, tokens: int) -> Callable[[], None]:
    """A pass over the first token of each of ``tokens`` rows."""
    shape = (len(decoder.layers), tokens, decoder.parts.num_kv_heads, decoder.head_dim)
    cache = KvCache(torch.zeros(shape), torch.zeros(shape), page_size=1)
    rows = torch.arange(tokens)
    none = torch.zeros(tokens + 1, dtype=torch.int32)
    one = torch.ones(tokens, dtype=torch.int32)
    keys = AttentionKeys(rows.to(torch.int32).unsqueeze(1), rows.to(torch.int32), one, none, none[:0])
    batch = DecoderBatch(rows, Placement(torch.zeros(tokens, dtype=torch.int64), rows), keys, rows)
    outputs = DecoderOutputs(torch.empty(tokens, decoder.parts.head.rows))
    return lambda: decoder_pass(decoder, batch, cache, outputs, pool)


def _matrices(name: str, matrices: Sequence[PackedMatrix], machine: Machine, tokens: int) -> Case:
    first = matrices[0]
    x = torch.randn(tokens, first.cols)
    out = torch.empty(tokens, first.rows // 2 if first.gated else first.rows)
    floats = [unpack(matrix) for matrix in matrices]

    def ours() -> None:
        for matrix in matrices:
            (gated_linear if matrix.gated else linear)(x, matrix, out, machine.pool)

    def theirs() -> None:
        for weight in floats:
            y = torch_linear(x, weight)
            if first.gated:
                gate, up = y.chunk(2, dim=-1)
                silu(gate) * up

    num_bytes = sum(matrix.data.numel() for matrix in matrices)
    work = float(len(matrices) * first.rows * first.cols * tokens)
    return Case(name, tokens, machine.floor(num_bytes, work), ours, theirs)


def attention_case(decoder: PackedDecoder, machine: Machine, rows: int, context: int) -> Case:
    """One token of every row over its context, in as many layers as the model has."""
    heads, kv_heads, dim = decoder.parts.num_heads, decoder.parts.num_kv_heads, decoder.head_dim
    layers, page = len(decoder.layers), 16
    pages = torch.randperm(rows * context // page).to(torch.int32).view(rows, -1).contiguous()
    k, v = (torch.randn(layers, rows * context, kv_heads, dim) for _ in range(2))
    q = torch.randn(rows, heads, dim)
    out = torch.empty_like(q)
    none = torch.zeros(rows + 1, dtype=torch.int32)
    full = torch.full((rows,), context, dtype=torch.int32)
    keys = AttentionKeys(pages, torch.arange(rows, dtype=torch.int32), full, none, none[:0])

    def ours() -> None:
        for layer in range(layers):
            paged_attention(q, KvCache(k[layer], v[layer], page), keys, dim**-0.5, out, machine.pool)

    def theirs() -> None:  # contiguous keys: without the gathering that paging would cost torch
        for layer in range(layers):
            shape = (rows, context, kv_heads, dim)
            key, value = (store[layer].view(shape).transpose(1, 2) for store in (k, v))
            grouped = q.view(rows, kv_heads, heads // kv_heads, dim)
            scaled_dot_product_attention(grouped, key, value)

    work = 2.0 * layers * rows * context * heads * dim
    name = f"attention, context {context}"
    return Case(name, rows, machine.floor(2.0 * k.numel() * k.element_size(), work), ours, theirs)


def measure(cases: Sequence[Case], repeats: int, table: Table) -> None:
    """Time each case in turns and add it to the table."""
    for case in cases:
        pairs = [(timed(case.ours), timed(case.torch)) for _ in range(repeats)]
        ours = statistics.median(pair[0] for pair in pairs)
        theirs = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        table.add_row(
            case.name,
            str(case.tokens),
            f"{1e3 * ours:.2f}",
            f"{1e3 * case.floor:.2f}",
            f"{case.floor / ours:.0%}",
            f"{1e3 * theirs:.2f}",
            f"{ratio:.1f}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0."""
    parser = argparse.ArgumentParser(description="CPU kernels against their floors and against torch")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    files = resolve_model(options.model, report=print)
    config = ModelConfig.from_directory(files.directory)
    decoder = build_packed(config, load_stored(files, config))
    pool = ThreadPool(options.threads)
    data = torch.ones(1 << 26)
    machine = Machine(
        pool,
        max(read_bandwidth(pool, data) for _ in range(options.repeats)),
        max(multiply_add_rate(pool, PROBE_ITERATIONS) for _ in range(options.repeats)),
    )
    title = (
        f"{options.model}, {options.threads} threads, {pool.isa}: reads {machine.bandwidth / 1e9:.1f} GB/s, "
        f"{machine.rate / 1e9:.1f} G multiply-adds/s; median of {options.repeats}"
    )
    table = Table(title=title)
    for name in ("kernel", "tokens", "ours ms", "floor ms", "of floor", "torch ms", "torch / ours"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    with torch.inference_mode():
        one = min(timed(list(linear_cases(decoder, machine, 1))[-1].torch) for _ in range(options.repeats))
        scale = 1e3 * one / REFERENCE_MS
        print(f"torch, all linear layers, 1 token: {1e3 * one:.1f} ms, {scale:.2f} x the reference machine")
        for tokens in options.tokens:
            measure(list(linear_cases(decoder, machine, tokens)), options.repeats, table)
            table.add_section()
        for rows, context in CONTEXTS:
            measure([attention_case(decoder, machine, rows, context)], options.repeats, table)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    prepare_environment(os.environ)
    sys.exit(main())
