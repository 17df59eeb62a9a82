"""A process that is killed or interrupted loses at most what was not committed, and mixes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.errors import ExitCode

from . import fake_engine

ROWS = 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"prompt": [f"prompt {row % 10}" for row in range(ROWS)]}), path)
    return path


def start(source: Path, out: Path, seconds_per_row: float) -> subprocess.Popen[str]:
    command = [sys.executable, fake_engine.__file__, str(source), str(out), str(seconds_per_row)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(source: Path, out: Path) -> int:
    """The same command in this process, which is quicker to start."""
    return fake_engine.main(str(source), str(out), "0")


def wait_for_parts(out: Path, count: int) -> None:
    limit = time.monotonic() + 60
    while len(list(out.glob("parts/part-*.parquet"))) < count:
        assert time.monotonic() < limit, "no parts appeared"
        time.sleep(0.005)


def texts(out: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(
        out / "results.parquet", columns=["row_index", "text", "token_ids", "finish_reason"]
    ).to_pylist()
    return rows


def test_after_kill_9_the_same_command_ends_as_if_undisturbed(source: Path, tmp_path: Path) -> None:
    assert finish(source, tmp_path / "undisturbed") == 0
    out = tmp_path / "killed"
    for parts in (3, 11):
        process = start(source, out, 0.02)
        wait_for_parts(out, parts)
        process.kill()
        process.communicate(timeout=60)
        assert not (out / "results.parquet").exists()
    assert finish(source, out) == 0
    assert texts(out) == texts(tmp_path / "undisturbed")
    attempts = json.loads((out / "run.json").read_text())["attempts"]
    assert [attempt["exit_code"] for attempt in attempts] == [None, None, 0]
    committed = sum(len(pq.read_metadata(path).to_dict()) > 0 for path in (out / "parts").iterdir())
    assert committed == ROWS, "no row was answered twice"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.SIGINT), (signal.SIGTERM, ExitCode.SIGTERM)]
)
def test_a_signal_ends_the_run_with_everything_finished_committed(
    source: Path, tmp_path: Path, number: signal.Signals, code: ExitCode
) -> None:
    out = tmp_path / "out"
    process = start(source, out, 0.05)
    wait_for_parts(out, 2)
    sent = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent < 5
    assert process.returncode == code
    assert f"stopped by {number.name}" in errors
    attempt = json.loads((out / "run.json").read_text())["attempts"][-1]
    assert attempt["exit_code"] == code
    assert attempt["rows"] == len(list((out / "parts").iterdir()))
    assert finish(source, out) == 0
    assert len(texts(out)) == ROWS


def test_a_running_job_holds_its_directory_and_a_dead_one_does_not(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start(source, out, 1)
    wait_for_parts(out, 1)
    second = start(source, out, 0)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == ExitCode.LOCKED
    assert f"process {first.pid}" in errors
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    assert finish(source, out) == 0
