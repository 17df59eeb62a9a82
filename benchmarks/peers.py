"""specbatch against transformers ``generate``, in turns, on the same prompts, weights and threads.

Usage: ``python benchmarks/peers.py [--rows 1 4 16 32] [--tokens 64] [--repeats 3] [--threads 2]``.

Every side lives in a process of its own (so neither inherits the other's thread pools) and loads the same
weights in float32. Waiting threads of both park early, as specbatch's do anyway: on cores shared with others
the default would slow transformers down. Both decode greedily and produce exactly ``--tokens`` tokens per
row: transformers is forbidden to end early (``min_new_tokens``), specbatch is told of no end-of-sequence
token. The sides take turns, the order alternates, and what is reported is the median over repeats of the
ratio within one repeat. ``decode`` leaves the prompt out: the time for all tokens minus the time for one
token per row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.sides import Decode, specbatch_side, transformers_side
from specbatch.hardware.threads import prepare_environment, usable_cores

JOBS = Path(__file__).resolve().parent.parent / "sample_data" / "jobs.parquet"
MAX_WORDS = 80  # a few very long prompts would measure transformers' padding instead of its decoding
SIDES: tuple[tuple[str, Callable[[str, int, int], Decode]], ...] = (
    ("transformers", transformers_side),
    ("specbatch", specbatch_side),
)


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

    def __init__(self, side: int, model: str, max_rows: int, threads: int) -> None:
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


def serve(pipe: Connection, side: int, model: str, max_rows: int, threads: int) -> None:
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


def measure(
    workers: Sequence[Worker], prompts: Sequence[str], tokens: int, repeats: int
) -> list[list[Timing]]:
    """Timings ``[repeat][side]``; the first round warms up and is thrown away."""
    timings = []
    for repeat in range(repeats + 1):
        order = range(len(workers)) if repeat % 2 == 0 else reversed(range(len(workers)))
        taken = {side: workers[side].time(prompts, tokens) for side in order}
        timings.append([taken[side] for side in range(len(workers))])
    return timings[1:]


def summarise(rows: int, tokens: int, timings: list[list[Timing]]) -> dict[str, float]:
    """Medians over repeats of speeds and of the ratios specbatch / transformers."""
    peer, ours = ([repeat[side] for repeat in timings] for side in range(2))
    ratios = [p.total / o.total for p, o in zip(peer, ours, strict=True)]
    decode = [p.decode / o.decode for p, o in zip(peer, ours, strict=True)]
    return {
        "rows": rows,
        "transformers_tokens_per_s": statistics.median(t.tokens_per_s(rows, tokens) for t in peer),
        "specbatch_tokens_per_s": statistics.median(t.tokens_per_s(rows, tokens) for t in ours),
        "transformers_decode_per_s": statistics.median(t.decode_tokens_per_s(rows, tokens) for t in peer),
        "specbatch_decode_per_s": statistics.median(t.decode_tokens_per_s(rows, tokens) for t in ours),
        "ratio": statistics.median(ratios),
        "ratio_decode": statistics.median(decode),
        "ratio_decode_min": min(decode),
        "ratio_decode_max": max(decode),
    }


def show(results: Sequence[dict[str, float]], title: str) -> None:
    """Prints the ratio table."""
    table = Table(title=title)
    for name in ("rows", "transformers tok/s", "specbatch tok/s", "ratio", "ratio, decode", "min-max"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            f"{result['rows']:.0f}",
            f"{result['transformers_decode_per_s']:.1f}",
            f"{result['specbatch_decode_per_s']:.1f}",
            f"{result['ratio']:.2f}",
            f"{result['ratio_decode']:.2f}",
            f"{result['ratio_decode_min']:.2f}-{result['ratio_decode_max']:.2f}",
        )
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0."""
    parser = argparse.ArgumentParser(description="specbatch against transformers generate")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per row, at least 16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", action="store_true", help="print one JSON object per batch size instead")
    options = parser.parse_args(arguments)
    if options.tokens < 16 or options.repeats < 1:
        parser.error("--tokens must be at least 16 and --repeats at least 1")
    prepare_environment(os.environ)
    workers = [Worker(side, options.model, max(options.rows), options.threads) for side in range(len(SIDES))]
    results = []
    for rows in options.rows:
        timings = measure(workers, sample_prompts(rows), options.tokens, options.repeats)
        results.append(summarise(rows, options.tokens, timings))
        if options.json:
            print(json.dumps(results[-1]), flush=True)
    for worker in workers:
        worker.close()
    if not options.json:
        shape = f"{options.tokens} tokens per row, {options.threads} threads, median of {options.repeats}"
        show(results, f"{options.model}: decode tokens/s, {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
