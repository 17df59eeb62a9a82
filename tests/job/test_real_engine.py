"""The command line with the default model, killed and interrupted from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode
from specbatch.job.run import run_job

pytestmark = pytest.mark.model

FLAGS = ("--max-tokens", "24", "--token-ids", "--flush-rows", "1", "--max-rows-in-flight", "3")
PROMPTS = ["Name a colour.", "Count to nine.", "Name a colour.", "Say good night.", "Name a river."]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "in.parquet"
    pq.write_table(pa.table({"prompt": PROMPTS, "temperature": [0.0, 0.8, 0.8, 0.0, 0.0]}), path)
    return path


def start(source: Path, out: Path) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPECBATCH_")}
    cache = {name: os.environ[name] for name in ("SPECBATCH_CACHE",) if name in os.environ}
    command = [sys.executable, "-m", "specbatch", "run", str(source), "--out", str(out), *FLAGS]
    return subprocess.Popen(
        command, env={**clean, **cache}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def stop(
    process: subprocess.Popen[str], when: Callable[[], bool], number: signal.Signals
) -> tuple[int, float, str]:
    """Exit code, seconds until the end, stderr."""
    limit = time.monotonic() + 120
    while not when():
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)
    sent = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, time.monotonic() - sent, errors


def texts(out: Path) -> list[dict[str, object]]:
    columns = ["text", "token_ids", "finish_reason", "status"]
    rows: list[dict[str, object]] = pq.read_table(out / "results.parquet", columns=columns).to_pylist()
    return rows


def parts(out: Path) -> int:
    return len(list(out.glob("parts/part-*.parquet")))


def run_here(source: Path, out: Path) -> ExitCode:
    """The same job in this process, which is quicker to start."""
    config = JobConfig(
        input=(str(source),), out=out, max_tokens=24, token_ids=True, flush_rows=1, max_rows_in_flight=3
    )
    return run_job(config).exit_code


def test_killed_and_interrupted_it_ends_as_if_undisturbed(source: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run_here(source, whole) == ExitCode.OK

    code, lived, errors = stop(start(source, out), (out / "run.json").exists, signal.SIGTERM)
    assert (code, "stopped by SIGTERM" in errors, lived < 5) == (143, True, True), errors
    assert parts(out) == 0

    code, _, _ = stop(start(source, out), lambda: parts(out) >= 1, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert 0 < parts(out) < len(PROMPTS)
    assert not (out / "results.parquet").exists()

    assert run_here(source, out) == ExitCode.OK
    assert texts(out) == texts(whole)
    assert len({row["text"] for row in texts(out)}) > 1
