"""What is left of the promises when there is twice as much to do as time, through the command line.

Usage: ``python benchmarks/overload.py [--rows 68] [--load 2] [--repeats 1]``.

Plain decoding without promises is timed first: how long loading takes, and how long all rows. Deadlines are
set so that rows with promises need ``--load`` times the time there is: half of them are due after 0.6 of it,
the others at its end. Three tiers treat what cannot be kept in three ways (reject, late, degrade); a fourth
has no promises, but a right to advance; one owner has a quota that runs out, another one asks for a tier that
is not open to it. Then the same with rows among them that cannot be saved. The table says of each rule of
:mod:`benchmarks.rules` whether it held in every run; the exit code is 1 where one did not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started by path, not as a module
from benchmarks.evidence import Evidence, Finding, Line, attainment
from benchmarks.rules import MIN_PROGRESS, RULES, hopeless_rows_cost_nothing
from benchmarks.workloads import heldout, rewriting

KINDS = ("vip", "gold", "silver", "vip", "gold", "silver", "loose")
EARLY = 0.6
HOPELESS = 8
LONG = 192
"""Tokens that a row may write which has no time for one."""

ALLOWED = {"guest": ("loose",)}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("prompt", pa.string()),
        pa.field("tier", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("deadline_s", pa.float64()),
        pa.field("max_tokens", pa.int32()),
    ]
)
JOB = """
input = "rows.parquet"
out = "run"
model = "{model}"
max_rows_in_flight = {rows_in_flight}
max_failures = "100%"
"""
OVERLOADED = """
[tiers]
vip = {{ priority = 0, on_overload = "reject" }}
gold = {{ priority = 1 }}
silver = {{ priority = 2, on_overload = "degrade" }}
bronze = {{ priority = 5, deadline_s = {bronze} }}
loose = {{ priority = 20, min_progress = {min_progress}, share = 0.1 }}

[owners]
metered = {{ quota = {quota} }}
guest = {{ tiers = ["loose"] }}
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast this machine is without promises.

    Attributes:
        loading_s: From the start of a run to the first row.
        work_s: From there to the last token of the last row.
        texts: Id → text.
    """

    loading_s: float
    work_s: float
    texts: dict[str, str]


def usual_rows(count: int, tokens: int) -> list[dict[str, Any]]:
    """The rows, without deadlines; prompts of both kinds in turns."""
    pairs = chain.from_iterable(zip_longest(heldout(), rewriting()))
    prompts = [prompt for prompt in pairs if prompt is not None]
    if count + HOPELESS > len(prompts):
        raise SystemExit(f"there are {len(prompts)} prompts; --rows {len(prompts) - HOPELESS} at most")
    found = []
    for number, prompt in enumerate(prompts[: count + HOPELESS]):
        tier = KINDS[number % len(KINDS)] if number < count else "gold"
        owner = {3: "guest", 4: "metered", 11: "metered"}.get(number % 14) if number < count else None
        limit = tokens if number < count else LONG
        values = (f"row{number:02}", prompt, tier, owner, None, limit)
        found.append(dict(zip(SCHEMA.names, values, strict=True)))
    return found


def with_deadlines(rows: Sequence[Line], pace: Pace, load: float) -> list[dict[str, Any]]:
    """Every second row with promises is due early, so that all of them need ``load`` times what there is."""
    promised = sum(row["tier"] != "loose" for row in rows)
    late_s = pace.work_s * promised / len(rows) / load
    found = []
    for number, row in enumerate(rows):
        due = pace.loading_s + late_s * (EARLY if number % 2 else 1.0)
        found.append({**row, "deadline_s": None if row["tier"] == "loose" else due})
    return found


def without_hope(rows: Sequence[Line], pace: Pace) -> list[dict[str, Any]]:
    """Deadlines that are over before the model is loaded, or as soon as it is."""
    times = (0.5 * pace.loading_s, pace.loading_s + 0.02)
    return [{**row, "deadline_s": times[number % 2]} for number, row in enumerate(rows)]


class Bench:
    """A folder with runs.

    Args:
        options: Of the command line.
        folder: To work in.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder, self._runs = options, folder, 0

    def pace(self, usual: Sequence[Line], hopeless: Sequence[Line]) -> Pace:
        """What plain decoding takes, and loading with drafts and a profile: the first of two makes that."""
        plain = [self._plain(rows, "off") for rows in (usual, hopeless)]
        short = [{**row, "max_tokens": 1} for row in usual]
        loading = [self._plain(short, "auto") for _ in range(2)][-1]
        texts = {row["id"]: row["text"] for row in chain.from_iterable(plain)}
        begun = min(row["queued_s"] for row in plain[0])
        work_s = max(row["e2e_s"] for row in plain[0]) - begun
        return Pace(min(row["queued_s"] for row in loading), work_s, texts)

    def overloaded(self, rows: Sequence[Line], pace: Pace) -> Evidence:
        """A run with promises, and all that can be known of it."""
        latest = max(row["deadline_s"] or 0.0 for row in rows)
        metered = sum(row["max_tokens"] for row in rows if row["owner"] == "metered")
        quota = metered // 2
        limits = OVERLOADED.format(
            min_progress=MIN_PROGRESS, bronze=2.0 * latest - pace.loading_s, quota=quota
        )
        folder = self._run(rows, limits, "auto")
        report = self._call(folder, ["report", "run", "--json"])
        return Evidence(
            rows,
            _lines(folder, "results"),
            _lines(folder, "decisions"),
            json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8")),
            json.loads(report)["runs"][0],
            pace.texts,
            {"metered": quota},
            ALLOWED,
        )

    def _plain(self, rows: Sequence[Line], policy: str) -> list[Line]:
        free = [{**row, "tier": None, "owner": None} for row in rows]
        return _lines(self._run(free, "", policy), "results")

    def _run(self, rows: Sequence[Line], limits: str, policy: str) -> Path:
        self._runs += 1
        folder = self._folder / f"{self._runs}"
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], SCHEMA), folder / "rows.parquet")
        options = self._options
        job = JOB.format(model=options.model, rows_in_flight=options.rows_in_flight) + limits
        (folder / "job.toml").write_text(job, encoding="utf-8")
        flags = ["--policy", policy, "--decisions", "full", "--json"]
        self._call(folder, ["run", "job.toml", *flags])
        return folder

    def _call(self, folder: Path, arguments: Sequence[str]) -> str:
        """As a user does it."""
        command = [sys.executable, "-m", "specbatch", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
        return done.stdout


def _lines(folder: Path, name: str) -> list[Line]:
    lines: list[Line] = pq.read_table(folder / "run" / f"{name}.parquet").to_pylist()
    return lines


def findings(runs: Sequence[tuple[str, Evidence]]) -> Iterator[tuple[str, Finding]]:
    """Run and rule."""
    for rule in RULES:
        for name, run in runs:
            yield name, rule(run)


def cost_of_hopeless(alone: Sequence[Evidence], beside: Sequence[Evidence]) -> Finding:
    """Medians over repeats, of the usual rows that nobody limits."""
    ids = [row["id"] for row in alone[0].asked if row["deadline_s"] is not None and row["owner"] is None]
    shares = [statistics.median(attainment(run, ids) for run in runs) for runs in (alone, beside)]
    usual = {row["id"] for row in alone[0].asked}
    hopeless = [row for run in beside for row in run.results if row["id"] not in usual]
    return hopeless_rows_cost_nothing(shares[0], shares[1], hopeless)


def show(found: Sequence[tuple[str, Finding]], title: str) -> None:
    """The table, and each case below it."""
    table = Table(title=title)
    for heading in ("rule", "run", "held", "numbers"):
        table.add_column(heading)
    for name, finding in found:
        table.add_row(finding.rule, name, "BROKEN" if finding.broken else "yes", finding.numbers)
    console = Console(width=120)
    console.print(table)
    for name, finding in found:
        for case in finding.broken:
            console.print(f"broken, {name}: {finding.rule}: {case}", markup=False, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 where a rule was broken."""
    parser = argparse.ArgumentParser(description="the rules of overload, through the command line")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=68)
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per row at most")
    parser.add_argument("--rows-in-flight", type=int, default=16)
    parser.add_argument("--load", type=float, default=2.0, help="work in time that there is")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the runs in this new folder")
    options = parser.parse_args(arguments)
    rows = usual_rows(options.rows, options.tokens)
    with tempfile.TemporaryDirectory() as temporary:
        if options.keep is not None:
            options.keep.mkdir(parents=True)
        bench = Bench(options, options.keep or Path(temporary))
        pace = bench.pace(rows[: options.rows], rows[options.rows :])
        usual = with_deadlines(rows[: options.rows], pace, options.load)
        hopeless = without_hope(rows[options.rows :], pace)
        alone, beside = [], []
        for repeat in range(options.repeats):
            print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
            alone.append(bench.overloaded(usual, pace))
            beside.append(bench.overloaded([*hopeless, *usual], pace))
    pairs = (("usual", alone), ("with hopeless", beside))
    runs = [(name, run) for name, evidence in pairs for run in evidence]
    found = [*findings(runs), ("both", cost_of_hopeless(alone, beside))]
    time_s = max(row["deadline_s"] or 0.0 for row in usual) - pace.loading_s
    due = f"deadlines {EARLY * time_s:.2f} s and {time_s:.2f} s after {pace.loading_s:.2f} s of loading"
    show(found, f"{pace.work_s:.2f} s of work for {options.rows} rows, {due}")
    return int(any(finding.broken for _, finding in found))


if __name__ == "__main__":
    sys.exit(main())
