"""Going on: the clock, what was lost, another choice of rows, another job."""

from __future__ import annotations

import json
import os
import shutil
import signal
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, Interrupted, MismatchError, StorageError
from specbatch.job.validate import validate_job
from specbatch.report.status import read_status
from specbatch.table.rundir import RunDir

from .fake_engine import FakeEngine, World
from .jobs import Crash, crash_at, manifest, results, run, save_job

PROMPTS = ["a", "b", "same", "same", "same", "c"]


def job(tmp_path: Path, **settings: object) -> JobConfig:
    table: dict[str, object] = {"prompt": PROMPTS, "mark": [f"m{text}" for text in PROMPTS]}
    return save_job(tmp_path, table, token_ids=True, **settings)


def texts(config: JobConfig) -> list[tuple[object, ...]]:
    return [(row["text"], row["token_ids"], row["finish_reason"]) for row in results(config)]


def test_the_run_clock_counts_from_the_first_start_and_never_goes_back(tmp_path: Path) -> None:
    times = iter([1000.0, 1000.0, 1000.0, 500.0, 500.0, 500.0, 500.0])
    world = crash_at(2)
    world.wall = lambda: next(times)
    config = job(tmp_path, flush_rows=1)
    with pytest.raises(Crash):
        run(config, world)
    second = World(wall=world.wall)
    run(config, second)
    seen = second.engine.started_at
    assert 0 < seen < 10
    assert manifest(config)["epoch"] == 1000.0


def test_the_run_clock_goes_on_however_often_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    config = job(tmp_path, flush_rows=1)
    began: list[float] = []
    for row, wall in enumerate([5000.0, 4000.0, 3000.0, 9000.0]):
        world = crash_at(row + 1)
        world.wall = lambda wall=wall: wall  # type: ignore[misc]
        with pytest.raises(Crash):
            run(config, world)
        began.append(world.engine.started_at)
    assert began == sorted(began)
    assert len(set(began)) == 4, "time that has passed in one attempt does not pass again in the next"
    assert 0 < began[0] < began[2] < 60
    assert began[3] >= 4000, "time between attempts counts"
    run(config)
    assert all(row["queued_s"] >= 0 and row["e2e_s"] >= 0 for row in results(config))


def test_a_killed_attempt_is_told_of(tmp_path: Path) -> None:
    config = job(tmp_path, flush_rows=1)
    with pytest.raises(Crash):
        run(config, crash_at(3))
    path = tmp_path / "out" / "run.json"
    content = manifest(config)
    content["attempts"][0].update(exit_code=None, end=None, computed_tokens=25)
    path.write_text(json.dumps(content))
    world = World()
    run(config, world)
    (told,) = [line for line in world.reporter.said if line.startswith("the last attempt")]
    assert told.startswith("the last attempt ended without saying why (killed, ")
    assert told.endswith("; 16 tokens or more of its work are lost")


def test_the_rate_of_a_run_counts_rows_that_were_answered(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": ["a", "b", *["unspeakable"] * 9, "c"]}, flush_rows=1)
    with pytest.raises(Crash):
        run(config, crash_at(11))
    (attempt,) = manifest(config)["attempts"]
    assert (attempt["rows"], attempt["answered_rows"]) == (11, 2)
    found = read_status(tmp_path / "out")
    assert found.rows_done == 11
    assert found.rows_per_s == pytest.approx(2 / attempt["engine_seconds"])


def test_counts_of_the_engine_are_of_all_attempts_that_it_could_leave_in_order(tmp_path: Path) -> None:
    config = job(tmp_path, flush_rows=1)
    with pytest.raises(Crash):
        run(config, crash_at(1))

    def stop(row: int) -> None:
        if row == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(config, World(FakeEngine(before_row=stop)))
    engine = run(config).summary["engine"]
    assert engine["steps"] == len(PROMPTS) - 1, "the crashed attempt answered one row"


PROMISES: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"deadline_s": [60.0, 60.0, 60.0]}, {}),
    ({"arrival_s": [0.0, 0.0, 0.5]}, {}),
    ({"ttft_slo_ms": [None, None, 100.0]}, {}),
    ({}, {"tiers": {"standard": {"priority": 3, "deadline_s": 60}}}),
]
NONE: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {}),
    ({"deadline": pa.array([10**9] * 3, pa.timestamp("s", "UTC"))}, {}),
    ({"deadline_s": [60.0, 60.0, None]}, {}),
]


@pytest.mark.parametrize(
    ("columns", "settings", "warned"), [(*c, True) for c in PROMISES] + [(*c, False) for c in NONE]
)
def test_new_rows_in_the_directory_of_a_finished_run_are_told_since_when_their_promises_count(
    tmp_path: Path, columns: dict[str, object], settings: dict[str, object], warned: bool
) -> None:
    table = pa.table({"prompt": ["a", "b", "c"], **columns})
    config = save_job(tmp_path, {name: table[name] for name in table.column_names}, **settings)
    pq.write_table(table.slice(0, 2), config.input[0])
    first, second, third = World(wall=lambda: 1.75e9), World(), World()
    run(config, first)
    pq.write_table(table, config.input[0])
    run(config, second)
    run(config, third)
    assert second.engine.served == [2]
    for world in (first, third):
        assert not [line for line in world.reporter.said if line.startswith("warning")]
    (*warnings,) = [line for line in second.reporter.said if line.startswith("warning")]
    assert len(warnings) == warned
    if warned:
        started = datetime.fromtimestamp(1.75e9).astimezone()
        assert "for the 1 rows left deadline_s" in warnings[0]
        assert f"its first start, {started:%Y-%m-%d %H:%M:%S %Z}" in warnings[0]
        assert "--out" in warnings[0]
        assert "--fresh" in warnings[0]


@pytest.mark.parametrize("replaced", [False, True])
def test_input_that_goes_while_the_job_runs_is_named_and_finished_rows_are_kept(
    tmp_path: Path, replaced: bool
) -> None:
    config = job(tmp_path)
    table = tmp_path / "in.parquet"
    whole = table.read_bytes()

    def take_away(row: int) -> None:
        if row == 3:
            table.unlink()
            if replaced:
                table.write_bytes(whole[:-100])

    with pytest.raises(StorageError, match=r"in\.parquet was (deleted|changed) while the job ran") as caught:
        run(config, World(FakeEngine(before_row=take_away)))
    assert caught.value.exit_code == ExitCode.ENGINE
    assert "run the same command again" in caught.value.hint
    table.write_bytes(whole)
    world = World()
    assert run(config, world).exit_code == ExitCode.OK
    assert world.engine.served == []


def test_rows_that_are_not_chosen_are_not_there_and_another_choice_continues(tmp_path: Path) -> None:
    chosen = job(tmp_path, where="prompt in ('b', 'same') and mark <> 'x'", limit=3)
    run(chosen)
    assert [(row["row_index"], row["mark"]) for row in results(chosen)] == [
        (0, "mb"),
        (1, "msame"),
        (2, "msame"),
    ]
    kept = texts(chosen)
    world = World()
    everything = job(tmp_path)
    assert run(everything, world).ran
    assert world.engine.served == [0, 4, 5]
    assert texts(everything)[1:4] == kept
    assert run(job(tmp_path, where="prompt = 'nothing'")).summary["rows"]["total"] == 0


def test_the_directory_of_another_job_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    config = job(tmp_path)
    run(config)
    (tmp_path / "in.parquet").rename(tmp_path / "moved.parquet")
    moved = config.model_copy(update={"input": (str(tmp_path / "moved.parquet"),)})
    assert run(moved).exit_code == ExitCode.OK, "the very same file, elsewhere"
    before = (tmp_path / "out" / "results.parquet").read_bytes()
    pq.write_table(pa.table({"prompt": ["other"]}), tmp_path / "other.parquet")
    other = config.model_copy(update={"input": (str(tmp_path / "other.parquet"),)})
    with pytest.raises(
        MismatchError, match=r"results of another job \(input .*moved\.parquet there"
    ) as caught:
        run(other)
    assert "--reuse" in caught.value.hint
    assert (tmp_path / "out" / "results.parquet").read_bytes() == before
    both = config.model_copy(update={"input": (*moved.input, *other.input)})
    pq.write_table(pa.table({"prompt": ["other"], "mark": ["m"]}), tmp_path / "other.parquet")
    assert run(both).summary["rows"]["total"] == 7
    assert run(other, fresh=True).summary["rows"]["total"] == 1


def test_starting_over_removes_only_what_runs_wrote_and_names_the_rest(tmp_path: Path) -> None:
    config = job(tmp_path)
    run(config)
    out = tmp_path / "out"
    for folder in ("parts", "decisions"):
        (out / folder / "mine").mkdir(parents=True, exist_ok=True)
        (out / folder / "mine" / "deep.txt").write_text("precious")
        (out / folder / "notes.txt").write_text("precious")
    (out / "parts" / "part-000077.parquet").write_text("a part by its name")
    (out / "report.html").write_text("precious")
    world = World()
    assert run(config, world, fresh=True).exit_code == ExitCode.OK
    assert len(world.engine.served) == len(PROMPTS)
    assert not (out / "parts" / "part-000077.parquet").exists()
    mine = [out / folder / name for folder in ("parts", "decisions") for name in ("mine", "notes.txt")]
    assert [line for line in world.reporter.said if line.endswith("no run wrote it")] == [
        f"{path} stays where it is: no run wrote it" for path in mine
    ]
    assert len([path for path in out.rglob("*") if path.is_file() and path.read_bytes() == b"precious"]) == 5
    for path in ("parts", "decisions"):
        shutil.rmtree(out / path / "mine")
        (out / path / "notes.txt").unlink()
    RunDir(out).clear()
    assert {path.name for path in out.iterdir()} == {".lock", "report.html"}


def test_validate_refuses_the_directory_that_a_run_would_refuse(tmp_path: Path) -> None:
    config = job(tmp_path, max_tokens=8)
    validate_job(config, 0, None, 0.0)
    run(config)
    validate_job(config, 0, None, 0.0)
    validate_job(config.model_copy(update={"policy": "off", "max_rows_in_flight": 2}), 0, None, 0.0)
    with pytest.raises(MismatchError, match="max_tokens: 8 there, 9 now"):
        validate_job(config.model_copy(update={"max_tokens": 9}), 0, None, 0.0)
    other = save_job(tmp_path / "other", {"prompt": ["x"]}, max_tokens=8)
    with pytest.raises(MismatchError):
        validate_job(other.model_copy(update={"out": config.out}), 0, None, 0.0)
