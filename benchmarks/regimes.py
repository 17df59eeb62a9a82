"""How soon a policy finds its way when a run changes under it.

Usage: ``python benchmarks/regimes.py [--regimes drafts mix rate memory] [--policies auto] [--repeats 3]``.

Rows stream through a full batch; from one of them on, something is different: drafts are wrong, most rows are
tight, rows arrive three times as fast, or prompts are so long that K/V memory is short. Judged are the rows
admitted after a grace of 20 steps or a tenth of the tightest promised time, whichever is longer: how many of
them kept their promises, against the same rows in a run that knew nothing else from its start. Promises are
factors of what plain decoding takes on this machine, measured first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.changes import FACTORS, REGIMES, TIERS, USUAL, Breaking, Outcome, Regime, judge
from benchmarks.workloads import SETS
from specbatch.bench.workload import Mix, Workload
from specbatch.config import JobConfig
from specbatch.hardware.threads import prepare_environment
from specbatch.models.resolve import resolve_model
from specbatch.rows import Prompt, RawPrompt

if TYPE_CHECKING:  # these import torch
    from specbatch.bench.once import Run
    from specbatch.bench.rig import Rig

ALLOWED = 0.05


class Stage:
    """The loaded model, and what regimes are made of.

    Args:
        options: Of the command line.
        kv_memory: Memory for keys and values.
    """

    def __init__(self, options: argparse.Namespace, kv_memory: str) -> None:
        from specbatch.bench.rig import open_rig  # noqa: PLC0415 - imports torch

        self.options = options
        self.job = JobConfig.model_validate(
            {
                "input": ("benchmark",),
                "model": options.model,
                "tiers": TIERS,
                "max_tokens": options.tokens,
                "max_rows_in_flight": options.rows_in_flight,
                "threads": options.threads,
                "kv_memory": kv_memory,
            }
        )
        self.rig: Rig = open_rig(self.job, options.policies, resolve_model(self.job.model, report=_say))

    def rows(self, regime: Regime) -> list[Prompt]:
        """The rows of a regime with their promises; those behind the change come after ``options.before``."""
        from specbatch.bench.cases import make_cases, spread  # noqa: PLC0415 - as below
        from specbatch.bench.rounds import measure_plain  # noqa: PLC0415 - imports torch

        short, long = self._prompts()
        before, after = self.options.before, self.options.after
        mixes = {
            name: Mix.model_validate({"rows": share, "tpot": FACTORS[name]}) for name, share in USUAL.items()
        }
        batch = self.options.rows_in_flight
        usual = (long if regime.long_prompts else short)[:batch]
        workload = Workload.model_validate({"rows": batch, "tiers": mixes})
        case = make_cases(workload, self.job, usual)[0]
        plain = measure_plain(self.rig, case, _say)
        slos = {prompt.tier: prompt.slo for prompt in case.resolved(plain)}
        shares = [
            (regime.before, before, short),
            (regime.after, after, long if regime.long_prompts else short),
        ]
        found: list[Prompt] = []
        for parts, count, source in shares:
            tiers = spread({name: Mix(rows=share) for name, share in parts.items()}, count)
            for tier in tiers:
                assert tier is not None, "every row has one"
                prompt, number = source[len(found) % len(source)], len(found)
                found.append(
                    replace(prompt, row_index=number, key=f"{number:032x}", tier=tier, slo=slos[tier])
                )
        if regime.rates is not None:
            found = _arriving(found, before, [rate * plain.rows_per_s for rate in regime.rates])
        return found

    def outcome(self, policy: str, regime: Regime, rows: Sequence[Prompt]) -> Outcome:
        """One pair of runs."""
        first = self.options.before
        offset = rows[first].arrival
        alone = [
            replace(row, row_index=row.row_index - first, arrival=row.arrival - offset)
            for row in rows[first:]
        ]
        changed = self._run(policy, rows, first if regime.breaks_drafts else None)
        fresh = self._run(policy, alone, 0 if regime.breaks_drafts else None)
        return judge(changed, fresh, rows, first)

    def _run(self, policy: str, rows: Sequence[Prompt], broken_from: int | None) -> Run:
        from specbatch.bench.once import run_once  # noqa: PLC0415 - imports torch

        job = self.job.model_copy(update={"policy": policy})
        target = self.rig.fresh(job)
        if broken_from is not None and target.drafter is not None:
            broken = Breaking(target.drafter, broken_from, target.config.vocab_size)
            target = replace(target, drafter=broken)
        return run_once(target, job, rows, self.rig.clock)

    def _prompts(self) -> tuple[list[Prompt], list[Prompt]]:
        """Short ones and long ones, encoded."""

        def encoded(name: str) -> list[Prompt]:
            rows = (RawPrompt(0, "", None, "loose", text, self.job.sampling) for text in SETS[name]())
            return [self.rig.encoder.encode(row) for row in rows]

        return encoded("heldout"), encoded("rewriting")


def _arriving(rows: Sequence[Prompt], first: int, rates: Sequence[float]) -> list[Prompt]:
    """Evenly, at one rate up to the change and at another one from it on."""
    now, found = 0.0, []
    for row in rows:
        found.append(replace(row, arrival=now))
        now += 1.0 / rates[0 if row.row_index < first else 1]
    return found


def show(name: str, policy: str, outcomes: Sequence[Outcome], table: Table) -> None:
    """One line: medians over repeats."""
    changed = statistics.median(each.changed for each in outcomes)
    fresh = statistics.median(each.fresh for each in outcomes)
    lost = statistics.median(each.fresh - each.changed for each in outcomes)
    rows = min(each.rows for each in outcomes)
    verdict = "yes" if lost <= ALLOWED else "NO"
    table.add_row(
        name,
        policy,
        str(rows),
        f"{statistics.median(each.grace_s for each in outcomes):.2f}",
        f"{statistics.median(each.preempted for each in outcomes):g}",
        f"{fresh:.0%}",
        f"{changed:.0%}",
        f"{100 * lost:+.0f}",
        verdict if rows else "nobody to judge",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0."""
    parser = argparse.ArgumentParser(description="attainment after a sudden change")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--policies", nargs="+", default=["auto"])
    parser.add_argument("--rows-in-flight", type=int, default=16)
    parser.add_argument("--before", type=int, default=32, help="rows before the change")
    parser.add_argument("--after", type=int, default=64, help="rows behind it")
    parser.add_argument("--tokens", type=int, default=48, help="output tokens per row at most")
    parser.add_argument("--kv-memory", default="160MiB", help="of regime memory")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    prepare_environment(os.environ)
    table = Table(title=f"{options.model}: rows admitted after a change and a grace")
    for heading in (
        "regime",
        "policy",
        "rows",
        "grace s",
        "preempted",
        "SLO met from start",
        "after change",
        "points lost",
    ):
        table.add_column(heading, justify="left" if heading in ("regime", "policy") else "right")
    table.add_column(f"within {100 * ALLOWED:.0f}")
    stages: dict[str, Stage] = {}
    for name in options.regimes:
        memory = options.kv_memory if name == "memory" else "auto"
        if memory not in stages:
            stages[memory] = Stage(options, memory)
        stage = stages[memory]
        rows = stage.rows(REGIMES[name])
        outcomes: dict[str, list[Outcome]] = {policy: [] for policy in options.policies}
        for repeat in range(options.repeats):
            for policy in options.policies:
                _say(f"{name}: repeat {repeat + 1} of {options.repeats}, {policy}")
                outcomes[policy].append(stage.outcome(policy, REGIMES[name], rows))
        for policy, found in outcomes.items():
            show(name, policy, found, table)
    Console(width=120).print(table)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
