"""Speed of speculation against plain decoding, by rows in flight, policy and drafter.

Usage: ``python benchmarks/speculation.py [--rows 1 4 16 64] [--sets heldout rewriting] [--tokens 64]
[--repeats 5] [--prompts 8]``. At least ``--prompts`` prompts are decoded, ``--rows`` at a time; each set and
number of rows has a table, printed when it is done. All sides run on one loaded model, in turns; the order
alternates, and what is reported are medians over repeats of ratios to ``off`` within one repeat: of the whole
run, prompts included, and of the time per token of a row after its first one, other rows' prompts included.
Every text is compared with that of ``off``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.acceptance import Guess, tokens_per_pass
from benchmarks.sides import CountingHost, ListFeed
from benchmarks.workloads import SETS, those_there
from specbatch.account import DraftAccount
from specbatch.config import JobConfig
from specbatch.hardware.threads import prepare_environment
from specbatch.models.resolve import resolve_model
from specbatch.rows import Answer, SamplingParams

if TYPE_CHECKING:
    from specbatch.bench.rig import Rig

OFF = Guess("off", {"policy": "off"})
GUESSES = (
    Guess("fixed:2, head", {"policy": "fixed:2", "drafter": "head"}),
    Guess("fixed:4, head", {"policy": "fixed:4", "drafter": "head"}),
    Guess(
        "eagle 4x4, 8 nodes, head",
        {"policy": "eagle", "tree_levels": 4, "tree_width": 4, "tree_nodes": 8, "drafter": "head"},
    ),
    Guess("fixed:4, suffix", {"policy": "fixed:4", "drafter": "suffix"}),
    Guess("fixed:8, suffix", {"policy": "fixed:8", "drafter": "suffix"}),
    Guess("fixed:4, suffix+head", {"policy": "fixed:4", "drafter": "suffix+head"}),
    Guess("auto, suffix+head", {"policy": "auto", "drafter": "suffix+head"}),
)


@dataclass(slots=True)
class TextHost(CountingHost):
    """Keeps the tokens of every row, and how long those after the first one took."""

    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    later_s: float = 0.0

    def deliver(self, answer: Answer) -> None:
        """Keeps one answer."""
        self.texts[answer.row_index] = answer.token_ids
        if answer.first_token_at is not None:
            self.later_s += answer.finished_at - answer.first_token_at
        CountingHost.deliver(self, answer)


@dataclass(frozen=True, slots=True)
class Side:
    """A loaded model with what drafts for it, and a job."""

    rig: Rig
    job: JobConfig

    def with_rows(self, rows: int) -> Side:
        """The same with so many rows in flight."""
        return Side(self.rig, self.job.model_copy(update={"max_rows_in_flight": rows}))


@dataclass(frozen=True, slots=True)
class Run:
    """One decoding of all rows.

    Attributes:
        seconds: From the first prompt to the last token.
        later_s: Seconds behind the first token of each row, summed over rows.
    """

    seconds: float
    later_s: float
    texts: dict[int, tuple[int, ...]]
    drafts: DraftAccount


def run(side: Side, prompts: Sequence[str], params: SamplingParams) -> Run:
    """Decode once."""
    from specbatch.engine.loop import Loop  # noqa: PLC0415 - imports torch

    host = TextHost()
    feed = ListFeed(prompts, params, side.rig.encoder)
    loop = Loop(side.rig.fresh(side.job), side.job, feed, host)
    start = time.perf_counter()
    stats = loop.run()
    return Run(time.perf_counter() - start, host.later_s, host.texts, stats.drafts)


def compare(
    sides: dict[str, Side], prompts: Sequence[str], params: SamplingParams, repeats: int
) -> list[dict[str, Run]]:
    """Runs of every side for every repeat; the first round warms up and is thrown away.

    Raises:
        RuntimeError: A text differs from that of plain decoding.
    """
    rounds = []
    for repeat in range(repeats + 1):
        names = list(sides) if repeat % 2 == 0 else list(sides)[::-1]
        print(f"round {repeat} of {repeats}", file=sys.stderr)
        runs = {name: run(sides[name], prompts, params) for name in names}
        for name, each in runs.items():
            if each.texts != runs[OFF.name].texts:
                raise RuntimeError(f"{name}: a text differs from plain decoding")
        rounds.append(runs)
    return rounds[1:]


def show(title: str, rounds: Sequence[dict[str, Run]]) -> None:
    """One line for each side."""
    table = Table(title=title)
    for name in (
        "side",
        "tok/s",
        "ratio to off",
        "min-max",
        "per token",
        "min-max",
        "tokens/pass",
        "rejected",
    ):
        table.add_column(name, justify="left" if name == "side" else "right")
    for name in rounds[0]:
        whole = [runs[OFF.name].seconds / runs[name].seconds for runs in rounds]
        later = [runs[OFF.name].later_s / runs[name].later_s for runs in rounds]
        runs = [each[name] for each in rounds]
        account = runs[0].drafts
        table.add_row(
            name,
            f"{sum(map(len, runs[0].texts.values())) / statistics.median(each.seconds for each in runs):.1f}",
            *(cell for ratios in (whole, later) for cell in middle_and_range(ratios)),
            f"{tokens_per_pass(account):.2f}" if account.verifications else "1.00",
            f"{account.rejected / account.verified:.0%}" if account.verified else "-",
        )
    Console(width=120).print(table)


def middle_and_range(ratios: Sequence[float]) -> tuple[str, str]:
    """Median, and least and most."""
    return f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns 0, or 1 where none of the sets is there."""
    parser = argparse.ArgumentParser(description="speed of speculation against plain decoding")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=["heldout", "rewriting"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per row at most")
    parser.add_argument("--prompts", type=int, default=8, help="decoded at least, one alone says little")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft-head", type=Path)
    parser.add_argument(
        "--sides", nargs="+", choices=[g.name for g in GUESSES], default=[g.name for g in GUESSES]
    )
    options = parser.parse_args(arguments)
    prepare_environment(os.environ)
    chosen = those_there(options.sets)
    if not chosen:
        return 1
    sides = open_all(options)
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature)
    for name, available in chosen.items():
        for rows in options.rows:
            prompts = [available[i % len(available)] for i in range(max(rows, options.prompts))]
            here = {side: each.with_rows(rows) for side, each in sides.items()}
            title = f"{name}, {rows} in flight, temperature {options.temperature:g}"
            show(title, compare(here, prompts, params, options.repeats))
    return 0


def open_all(options: argparse.Namespace) -> dict[str, Side]:
    """One model for all sides; each has its part of the drafter."""
    from specbatch.bench.rig import open_rig  # noqa: PLC0415 - imports torch

    common = JobConfig.model_validate(
        {
            "input": ("benchmark",),
            "model": options.model,
            "max_rows_in_flight": max(options.rows),
            "threads": options.threads,
            "drafter": "suffix+head",
            "draft_head": options.draft_head,
        }
    )
    chosen = [OFF, *(each for each in GUESSES if each.name in options.sides)]
    policies = [str(each.settings["policy"]) for each in chosen]
    rig = open_rig(common, policies, resolve_model(common.model, report=lambda _: None))
    parts = {"head": replace(rig, suffix=False), "suffix": replace(rig, head=None), "suffix+head": rig}
    return {
        each.name: Side(
            parts[str(each.settings.get("drafter", "suffix+head"))],
            JobConfig.model_validate({**common.model_dump(), **each.settings}),
        )
        for each in chosen
    }


if __name__ == "__main__":
    sys.exit(main())
