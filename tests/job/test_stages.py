"""Killed or interrupted at any moment: nothing safe is lost or runs twice, the end is as if undisturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.errors import ExitCode

from .fake_engine import World
from .jobs import Crash, crash_at, manifest, results, run
from .staged import FLUSH_ROWS, LATER_ROW, config_of

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20
LONG, SHORT = 60.0, 0.3
# Rows that are committed when the stage is reached, and whether a signal is answered inside it.
STAGES = {
    "index": (0, LONG),
    "model load": (0, LONG),
    "prefill": (0, SHORT),
    "decode": (LATER_ROW // FLUSH_ROWS * FLUSH_ROWS, SHORT),
    "part write": (2 * FLUSH_ROWS, SHORT),
    "part renamed": (FLUSH_ROWS, SHORT),
    "finalise": (ROWS, SHORT),
    "results written": (ROWS, SHORT),
    "summary": (ROWS, SHORT),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "in.parquet"
    pq.write_table(pa.table({"prompt": [f"prompt {row % 7}" for row in range(ROWS)]}), path)
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path) -> list[tuple[object, ...]]:
    config = config_of(source, source.parent / "undisturbed")
    run(config)
    return [what_counts(row) for row in results(config)]


def what_counts(row: dict[str, object]) -> tuple[object, ...]:
    return row["text"], row["token_ids"], row["finish_reason"], row["status"]


class Runner:
    """Starts staged runs and stops them."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.job.staged"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop_at(
        self, stage: str, seconds: float, source: Path, out: Path, number: signal.Signals
    ) -> tuple[int, float]:
        """Exit code of the run, and how long it lived on."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps([str(source), str(out), stage, str(seconds)]) + "\n")
        self.server.stdin.flush()
        pid = int(self.server.stdout.readline())
        limit = time.monotonic() + 60
        while not Path(f"{out}.there").exists():
            assert time.monotonic() < limit, "the stage was not reached"
            time.sleep(0.005)
        sent = time.monotonic()
        os.kill(pid, number)
        code = int(self.server.stdout.readline())
        return code, time.monotonic() - sent


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.server.communicate(timeout=60)


def committed(out: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in out.glob("parts/part-*.parquet"))


@pytest.mark.parametrize("stage", STAGES)
def test_after_kill_9_the_end_is_as_if_undisturbed_and_at_most_one_flush_runs_again(
    runner: Runner, stage: str, source: Path, undisturbed: list[tuple[object, ...]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _ = runner.stop_at(stage, LONG, source, out, signal.SIGKILL)
    assert code == -signal.SIGKILL
    safe, _ = STAGES[stage]
    assert committed(out) == safe
    config, world = config_of(source, out), World()
    outcome = run(config, world)
    assert outcome.exit_code == ExitCode.OK
    assert len(world.engine.served) == ROWS - safe
    assert [what_counts(row) for row in results(config)] == undisturbed
    assert not list(out.rglob("*.tmp")), "nothing half-written is left"
    attempts = manifest(config)["attempts"]
    assert [attempt["exit_code"] for attempt in attempts] == [None, 0]
    assert attempts[1]["began"] >= attempts[0]["began"] + attempts[0]["seconds"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_in_any_phase_ends_the_run_soon_with_finished_rows_committed(
    runner: Runner,
    stage: str,
    number: signal.Signals,
    source: Path,
    undisturbed: list[tuple[object, ...]],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    safe, seconds = STAGES[stage]
    code, lived = runner.stop_at(stage, seconds, source, out, number)
    config = config_of(source, out)
    if stage in ("results written", "summary"):
        assert code == ExitCode.OK, "the run is complete before the next safe point"
    else:
        assert code == 128 + number
        assert manifest(config)["attempts"][-1]["exit_code"] == code
    assert lived < 10  # well under 5 where other work does not hold both cores
    rows = committed(out)
    assert rows >= safe
    if stage == "decode":
        assert rows == LATER_ROW + 1, "the row that was running when the signal came is finished and kept"
    world = World()
    assert run(config, world).exit_code == ExitCode.OK
    assert len(world.engine.served) == ROWS - rows
    assert [what_counts(row) for row in results(config)] == undisturbed


def test_the_same_prompt_three_times_killed_after_one_gives_three_answers(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"prompt": ["same"] * 3}), source)
    whole = config_of(source, tmp_path / "whole")
    run(whole)
    expected = [row["text"] for row in results(whole)]
    assert len(set(expected)) == 3
    config = config_of(source, tmp_path / "out").model_copy(update={"flush_rows": 1})
    with pytest.raises(Crash):
        run(config, crash_at(1))
    world = World()
    run(config, world)
    assert world.engine.served == [1, 2]
    assert [row["text"] for row in results(config)] == expected


def test_a_killed_attempt_says_how_much_work_was_lost(runner: Runner, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runner.stop_at("part renamed", LONG, source, out, signal.SIGKILL)
    run(config_of(source, out))
    killed, finished = manifest(config_of(source, out))["attempts"]
    assert killed["end"] is None
    assert (killed["rows"], finished["rows"]) == (0, ROWS - FLUSH_ROWS), "the record came after the rename"
    assert finished["computed_tokens"] == finished["committed_tokens"] == 3 * (ROWS - FLUSH_ROWS)
