"""A program that stops for a while at a chosen moment of a run, to be killed or interrupted there.

It imports everything once and then forks for every line on its stdin, a JSON list ``[INPUT, OUT, STAGE,
SECONDS]``: it prints the process number, and in the end its exit code. The process runs a job with the
fake engine, three rows per commit; at the stage it creates ``OUT.there`` and sleeps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from specbatch.config import JobConfig
from specbatch.errors import SpecbatchError
from specbatch.job.run import run_job
from specbatch.table import atomic
from specbatch.table.finalise import Finaliser
from specbatch.table.index import IndexBuilder

from .fake_engine import FakeEngine, World

FLUSH_ROWS = 3
# Which file is being made safe: a part before and after its rename, the results, the summary.
SYNCED = {
    "part write": ".part-000003.parquet.tmp",
    "part renamed": "parts",
    "results written": ".results.parquet.tmp",
    "summary": ".summary.json.tmp",
}
FIRST_ROW, LATER_ROW = 0, 7


def config_of(source: Path, out: Path) -> JobConfig:
    """The job, as program and test both run it."""
    return JobConfig(input=(str(source),), out=out, token_ids=True, flush_rows=FLUSH_ROWS, flush_every_s=60)


class Stage:
    """One moment of the run."""

    def __init__(self, name: str, there: Path, seconds: float) -> None:
        self._name, self._there, self._seconds = name, there, seconds

    def reached(self, name: str) -> None:
        """Sleep, if this is the moment and the first time."""
        if name == self._name and not self._there.exists():
            self._there.touch()
            time.sleep(self._seconds)


def run_staged(config: JobConfig, stage: Stage) -> int:
    """Run the job with hooks at every stage; for a process that ends afterwards."""
    sync, append, sort = atomic._sync, IndexBuilder.append, Finaliser._sorted

    def hooked_sync(path: Path) -> None:
        sync(path)
        for name, file in SYNCED.items():
            if path.name == file:
                stage.reached(name)

    def hooked_append(self: IndexBuilder, batch: object) -> None:
        stage.reached("index")
        append(self, batch)

    def hooked_sort(self: Finaliser, *args: Any) -> object:
        stage.reached("finalise")
        return sort(self, *args)

    def before_row(row: int) -> None:
        stage.reached({FIRST_ROW: "prefill", LATER_ROW: "decode"}.get(row, ""))

    class Slow(World):
        def open_engine(self, *args: Any) -> Any:
            stage.reached("model load")
            return super().open_engine(*args)

    for owner, name, hook in (
        (atomic, "_sync", hooked_sync),
        (IndexBuilder, "append", hooked_append),
        (Finaliser, "_sorted", hooked_sort),
    ):
        setattr(owner, name, hook)
    world = Slow(FakeEngine(before_row=before_row))
    return int(run_job(config, surroundings=world.surroundings()).exit_code)


def main(source: str, out: str, stage: str, seconds: str) -> int:
    """Run; errors as in the command line."""
    try:
        there = Path(f"{out}.there")
        return run_staged(config_of(Path(source), Path(out)), Stage(stage, there, float(seconds)))
    except SpecbatchError as error:
        sys.stderr.write(f"{error.what}\n")
        return int(error.exit_code)


def serve() -> None:
    """Fork for every line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(main(*json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
