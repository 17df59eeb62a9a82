"""Tokens per target pass, by drafter, tree and prompt set: how good the guesses are, whatever the machine.

Usage: ``python benchmarks/acceptance.py [--sets heldout humaneval gsm8k] [--rows 44] [--tokens 96]
[--draft-head PATH] [--temperatures 0 1]``. The sets are in ``benchmarks/prompts`` and, where present, public.

``tokens/pass`` counts the target passes after prefill: accepted drafted tokens and the one that the target
adds. ``accepted by depth``: share of verifications that accepted at least so many tokens. Both are exact
counts; the speed of the machine plays no part, so this may run beside anything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.sides import CountingHost, ListFeed
from benchmarks.workloads import SETS, those_there
from specbatch.account import DraftAccount
from specbatch.config import JobConfig
from specbatch.models.resolve import resolve_model
from specbatch.rows import SamplingParams


@dataclass(frozen=True, slots=True)
class Guess:
    """One way of guessing.

    Attributes:
        settings: Of :class:`~specbatch.config.JobConfig`.
    """

    name: str
    settings: dict[str, object]


TREE = {"policy": "eagle", "tree_levels": 4, "tree_width": 4, "tree_nodes": 16}
GUESSES = {
    guess.name: guess
    for guess in (
        Guess("head, chain of 4", {"policy": "fixed:4", "drafter": "head"}),
        Guess("head, tree of depth 4, 16 nodes", {**TREE, "drafter": "head"}),
        Guess("suffix, chain of 4", {"policy": "fixed:4", "drafter": "suffix"}),
        Guess("suffix, chain of 8", {"policy": "fixed:8", "drafter": "suffix"}),
        Guess("suffix+head, chain of 4", {"policy": "fixed:4", "drafter": "suffix+head"}),
    )
}


def count(guess: Guess, prompts: Sequence[str], params: SamplingParams, base: JobConfig) -> DraftAccount:
    """The account of drafted tokens of a whole run."""
    from specbatch.engine.encoder import open_encoder  # noqa: PLC0415
    from specbatch.engine.native import open_engine  # noqa: PLC0415 - imports torch

    settings = {**base.model_dump(), **guess.settings}
    if "head" not in guess.name:
        settings["draft_head"] = None
    job = JobConfig.model_validate(settings)
    files = resolve_model(job.model, report=lambda _: None)
    engine = open_engine(job, files, open_encoder(job, files.directory))
    return engine.run(ListFeed(prompts, params, engine.encoder), CountingHost()).drafts


def tokens_per_pass(account: DraftAccount) -> float:
    """Accepted tokens and one more for every verification."""
    return 1 + account.accepted / account.verifications


def reached(account: DraftAccount) -> list[float]:
    """Share of verifications that accepted at least 1, 2, … tokens."""
    total = sum(account.accept_histogram)
    counts = account.accept_histogram
    return [sum(counts[depth:]) / total for depth in range(1, len(counts))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0."""
    parser = argparse.ArgumentParser(description="tokens per target pass, by drafter and prompt set")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=list(SETS))
    parser.add_argument("--guesses", nargs="+", choices=list(GUESSES), default=list(GUESSES))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--rows", type=int, default=44, help="prompts of each set at most")
    parser.add_argument("--tokens", type=int, default=96, help="output tokens per row at most")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft-head", type=Path)
    options = parser.parse_args(arguments)
    base = JobConfig(
        input=("benchmark",),
        model=options.model,
        max_rows_in_flight=16,
        threads=options.threads,
        draft_head=options.draft_head,
    )
    table = Table(title=f"{options.model}, up to {options.tokens} tokens per row")
    for name in ("set", "rows", "temperature", "drafts", "tokens/pass", "accepted by depth", "rejected"):
        table.add_column(name, justify="left" if name in ("set", "drafts") else "right")
    for chosen, available in those_there(options.sets).items():
        prompts = available[: options.rows]
        for temperature in options.temperatures:
            params = SamplingParams(max_tokens=options.tokens, temperature=temperature)
            for name in options.guesses:
                account = count(GUESSES[name], prompts, params, base)
                shares = " ".join(f"{share:.2f}" for share in reached(account)[:4])
                wasted = account.rejected / max(account.verified, 1)
                table.add_row(
                    chosen,
                    str(len(prompts)),
                    f"{temperature:g}",
                    name,
                    f"{tokens_per_pass(account):.2f}",
                    shares,
                    f"{wasted:.0%}",
                )
        table.add_section()
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
