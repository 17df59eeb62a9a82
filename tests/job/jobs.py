"""Small jobs for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specbatch.config import JobConfig
from specbatch.job.outcome import RunOutcome
from specbatch.job.run import Start, run_job

from .fake_engine import FakeEngine, World


class Crash(BaseException):
    """Passes through like a kill, but inside the process."""


def save_job(folder: Path, columns: dict[str, object], **settings: object) -> JobConfig:
    """A job over a table of these columns; its run directory is ``folder/out``."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "in.parquet")
    values = {"input": (str(folder / "in.parquet"),), "out": folder / "out", **settings}
    return JobConfig.model_validate(values)


def run(config: JobConfig, world: World | None = None, **start: Any) -> RunOutcome:
    """Run with a fake engine."""
    return run_job(config, start=Start(**start), surroundings=(world or World()).surroundings())


def results(config: JobConfig) -> list[dict[str, Any]]:
    """Rows of ``results.parquet``."""
    assert config.out is not None
    rows: list[dict[str, Any]] = pq.read_table(config.out / "results.parquet").to_pylist()
    return rows


def manifest(config: JobConfig) -> dict[str, Any]:
    """Content of ``run.json``."""
    assert config.out is not None
    content: dict[str, Any] = json.loads((config.out / "run.json").read_text())
    return content


def crash_at(row: int) -> World:
    """A world that breaks down before a row."""

    def before_row(current: int) -> None:
        if current == row:
            raise Crash

    return World(FakeEngine(before_row=before_row))
