"""A job from table to table: complete, resumable, never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.engine.feed import Engine
from specbatch.errors import EngineError, ExitCode, InputError, LockedError, MismatchError, UsageError
from specbatch.job.nights import run_directory
from specbatch.job.outcome import RunOutcome
from specbatch.job.run import Start, run_job
from specbatch.models.files import ModelFiles
from specbatch.table.rundir import locked

from .fake_engine import FILES, FakeEngine, World

PROMPTS = ["a", "b", "same", "same", "same", "c"]


def job(tmp_path: Path, prompts: list[str | None] | None = None, **settings: object) -> JobConfig:
    texts = PROMPTS if prompts is None else prompts
    table = pa.table({"prompt": pa.array(texts, pa.string()), "mark": [f"m{text}" for text in texts]})
    pq.write_table(table, tmp_path / "in.parquet")
    values = {
        "input": (str(tmp_path / "in.parquet"),),
        "out": tmp_path / "out",
        "token_ids": True,
        **settings,
    }
    return JobConfig.model_validate(values)


def run(config: JobConfig, world: World | None = None, *, fresh: bool = False) -> RunOutcome:
    return run_job(config, start=Start(fresh=fresh), surroundings=(world or World()).surroundings())


def results(config: JobConfig) -> list[dict[str, object]]:
    assert config.out is not None
    rows: list[dict[str, object]] = pq.read_table(config.out / "results.parquet").to_pylist()
    return rows


def texts(config: JobConfig) -> list[tuple[object, ...]]:
    return [(row["text"], row["token_ids"], row["finish_reason"]) for row in results(config)]


def manifest(config: JobConfig) -> dict[str, object]:
    assert config.out is not None
    content: dict[str, object] = json.loads((config.out / "run.json").read_text())
    return content


class Crash(BaseException):
    """Passes through like a kill, but inside the process."""


def crash_at(row: int) -> World:
    def before_row(current: int) -> None:
        if current == row:
            raise Crash

    return World(FakeEngine(before_row=before_row))


def test_every_row_comes_out_once_in_order_with_its_own_columns(tmp_path: Path) -> None:
    config = job(tmp_path)
    outcome = run(config)
    assert (outcome.exit_code, outcome.ran) == (ExitCode.OK, True)
    rows = results(config)
    assert [row["row_index"] for row in rows] == list(range(6))
    assert [row["mark"] for row in rows] == [f"m{text}" for text in PROMPTS]
    assert [str(row["text"]).split()[0] for row in rows] == PROMPTS
    assert len({row["text"] for row in rows}) == 6, "duplicates have draws of their own"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(".lock", "decisions.parquet", "parts", "results.parquet", "run.json", "summary.json")
    ]


def test_a_finished_job_is_recognised_without_opening_an_engine(tmp_path: Path) -> None:
    config = job(tmp_path, ["a", None])
    assert run(config).exit_code == ExitCode.ROW_FAILURES
    before = (tmp_path / "out" / "results.parquet").stat().st_mtime_ns
    world = World()
    outcome = run(config, world)
    assert (outcome.ran, outcome.exit_code, world.opened) == (False, ExitCode.ROW_FAILURES, 0)
    assert (tmp_path / "out" / "results.parquet").stat().st_mtime_ns == before


def test_an_interrupted_job_goes_on_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    config = job(tmp_path, flush_rows=1)
    run(config)
    expected = texts(config)
    for row in range(6):
        again = config.model_copy(update={"out": tmp_path / f"out{row}"})
        with pytest.raises(Crash):
            run(again, crash_at(row))
        world = World()
        assert run(again, world).exit_code == ExitCode.OK
        assert world.engine.served == list(range(row, 6))
        assert texts(again) == expected
        attempts = manifest(again)["attempts"]
        assert isinstance(attempts, list)
        assert [attempt["rows"] for attempt in attempts] == [row, 6 - row]


def test_inserted_rows_run_and_removed_rows_leave(tmp_path: Path) -> None:
    run(job(tmp_path))
    before = dict(zip(PROMPTS, texts(job(tmp_path)), strict=True))
    world = World()
    changed = job(tmp_path, ["new", "c", "same", "a"])
    assert run(changed, world).exit_code == ExitCode.OK
    assert world.engine.served == [0]
    after = texts(changed)
    assert after[1] == before["c"]
    assert after[3] == before["a"]
    assert [row["mark"] for row in results(changed)] == ["mnew", "mc", "msame", "ma"]
    world = World()
    run(job(tmp_path, ["same", "same", "same", "same"]), world)
    assert world.engine.served == [3], "only the fourth occurrence is new"


def test_a_larger_limit_continues_a_smaller_one(tmp_path: Path) -> None:
    run(job(tmp_path, limit=2))
    world = World()
    assert run(job(tmp_path), world).summary["rows"]["total"] == 6
    assert world.engine.served == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("key", "value"), [("max_tokens", 7), ("seed", 1), ("system", "s"), ("template", "{mark}")]
)
def test_other_settings_are_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, key: str, value: object
) -> None:
    settings: dict[str, Any] = {key: value}
    config = job(tmp_path)
    run(config)
    kept = texts(config)
    for limit in (None, 3):
        with pytest.raises(MismatchError, match=f"{key}: ") as caught:
            run(job(tmp_path, limit=limit, **settings))
        assert caught.value.exit_code == 2
        assert "--fresh" in caught.value.hint
    assert texts(config) == kept
    assert run(job(tmp_path, **settings), fresh=True).ran
    assert run(job(tmp_path, max_rows_in_flight=1, **settings)).exit_code == 0


def test_another_model_is_refused_and_so_are_other_numerics(tmp_path: Path) -> None:
    run(job(tmp_path))
    with pytest.raises(MismatchError, match=r'quantization: "q4_1" there, "q8_0" now'):
        run(job(tmp_path), World(files=replace(FILES, quantization="q8_0")))
    with pytest.raises(MismatchError, match='device: "cpu" there, "cuda" now'):
        run(job(tmp_path, device="cuda"))
    elsewhere = World(FakeEngine(numerics={"device": "cuda", "dtype": "float32"}))
    with pytest.raises(MismatchError, match='device: "cpu" there, "cuda" now'):
        run(job(tmp_path, ["more", *PROMPTS]), elsewhere)


def test_settings_may_change_while_nothing_is_finished(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        run(job(tmp_path), crash_at(0))
    assert run(job(tmp_path, seed=5)).exit_code == ExitCode.OK


def test_bad_rows_end_with_code_and_message_and_the_others_are_unharmed(tmp_path: Path) -> None:
    config = job(tmp_path, ["a", None, "unspeakable", "", "b"])
    outcome = run(config)
    assert outcome.exit_code == ExitCode.ROW_FAILURES
    assert "3 of 5 rows failed" in outcome.verdict
    rows = results(config)
    assert [row["status"] == "rejected" for row in rows] == [False, True, True, True, False]
    assert [row["error_code"] for row in rows[1:4]] == ["null_prompt", "template_error", "empty_prompt"]
    assert str(rows[1]["error_message"]).startswith("row 1: column `prompt` is null")
    clean = job(tmp_path, ["a", "b"], out=tmp_path / "clean")
    run(clean)
    assert texts(clean) == [texts(config)[0], texts(config)[4]]
    assert run(job(tmp_path, ["a", None, "unspeakable", "", "b"], max_failures=3)).exit_code == 0


def test_the_tightest_row_may_be_the_last(tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"{i}" for i in range(50)], "deadline_s": [100.0] * 49 + [1.0]})
    pq.write_table(table, tmp_path / "in.parquet")
    world = World()
    run(JobConfig(input=(str(tmp_path / "in.parquet"),), out=tmp_path / "out"), world)
    assert world.engine.served[0] == 49


def test_an_engine_failure_keeps_what_was_finished_and_says_where_the_details_are(tmp_path: Path) -> None:
    def fail(row: int) -> None:
        if row == 3:
            raise ValueError("boom")

    with pytest.raises(EngineError, match="ValueError: boom") as caught:
        run(job(tmp_path), World(FakeEngine(before_row=fail)))
    assert "error.txt" in caught.value.hint
    assert "boom" in (tmp_path / "out" / "error.txt").read_text()
    attempts = manifest(job(tmp_path))["attempts"]
    assert isinstance(attempts, list)
    assert attempts[0]["exit_code"] == ExitCode.ENGINE
    world = World()
    run(job(tmp_path), world)
    assert world.engine.served == [3, 4, 5]


def test_a_model_that_does_not_fit_into_memory_is_one_line(tmp_path: Path) -> None:
    class Tight(World):
        def open_engine(
            self, _config: JobConfig, _files: ModelFiles, _started: datetime, *_: object
        ) -> Engine:
            raise MemoryError("Unable to allocate 9 GiB")

    with pytest.raises(
        EngineError, match="the model cannot be loaded: MemoryError: Unable to allocate 9 GiB"
    ):
        run(job(tmp_path), Tight())


def test_an_engine_that_forgets_or_repeats_a_row_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="answered twice"):
        run(job(tmp_path), World(FakeEngine(choose=lambda rows: [*rows, rows[0]])))
    with pytest.raises(EngineError, match="1 rows have no answer, the first is row 5"):
        run(job(tmp_path, out=tmp_path / "other"), World(FakeEngine(choose=lambda rows: rows[:-1])))


def test_a_directory_in_use_is_not_entered(tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(LockedError) as caught:
        run(job(tmp_path))
    assert caught.value.exit_code == 75


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="not a run directory"):
        run(job(tmp_path), fresh=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_torn_and_foreign_parts_are_ignored_and_named(tmp_path: Path) -> None:
    config = job(tmp_path, flush_rows=1)
    with pytest.raises(Crash):
        run(config, crash_at(4))
    parts = sorted((tmp_path / "out" / "parts").iterdir())
    parts[1].write_bytes(parts[1].read_bytes()[:-20])
    run(job(tmp_path, out=tmp_path / "other"))
    foreign = next((tmp_path / "other" / "parts").iterdir())
    (tmp_path / "out" / "parts" / "part-000900.parquet").write_bytes(foreign.read_bytes())
    (tmp_path / "out" / "parts" / "note.txt").write_text("hello")
    (tmp_path / "out" / "parts" / ".part-000005.parquet.tmp").write_bytes(b"half")
    world = World()
    assert run(config, world).exit_code == ExitCode.OK
    assert world.engine.served == [1, 4, 5]
    said = "\n".join(world.reporter.said)
    assert f"{parts[1].name}: damaged or incomplete" in said
    assert "part-000900.parquet: belongs to another run" in said
    assert "note.txt: not a part" in said
    assert not (tmp_path / "out" / "parts" / ".part-000005.parquet.tmp").exists()
    assert (tmp_path / "out" / "parts" / "part-000901.parquet").exists(), "numbers are not used twice"


def test_an_input_error_leaves_no_directory_behind(tmp_path: Path) -> None:
    config = job(tmp_path)
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "in.parquet")
    with pytest.raises(InputError):
        run(config)
    assert not (tmp_path / "out").exists()


def test_the_run_directory_is_named_after_the_input() -> None:
    assert run_directory(JobConfig(input=("some/where/jobs.parquet",)), 0.0) == Path("jobs.out")
    assert run_directory(JobConfig(input=("some/where",)), 0.0) == Path("where.out")
    with pytest.raises(UsageError, match="run directory"):
        run_directory(JobConfig(input=("a.parquet", "b.parquet")), 0.0)
    with pytest.raises(UsageError, match="run directory"):
        run_directory(JobConfig(input=("*.parquet",)), 0.0)
