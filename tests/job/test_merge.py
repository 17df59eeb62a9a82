"""Shards and runs put together: the table of the undivided job, or a refusal that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, InputError, LockedError, MismatchError, SpecbatchError, UsageError
from specbatch.job.merge import merge_runs
from specbatch.report.status import read_status
from specbatch.table.rundir import locked

from .fake_engine import World
from .jobs import Crash, crash_at, run, save_job
from .table_engine import TableWorld

PROMPTS = [*(f"a{n % 7} a{n % 3}" for n in range(23)), "a1 a1"]
SAME = (
    "row_index",
    "id",
    "tier",
    "status",
    "error_code",
    "error_message",
    "finish_reason",
    "text",
    "token_ids",
)


def job(folder: Path, name: str, **settings: object) -> JobConfig:
    table: dict[str, object] = {
        "prompt": PROMPTS,
        "id": [f"r{n}" if n != 9 else "r2" for n in range(len(PROMPTS))],
        "deadline_s": [None if n % 3 == 0 else float(1000 + n * 37 % 11) for n in range(len(PROMPTS))],
        "tier": [("batch", "nonsense", "interactive")[n % 5 % 3] for n in range(len(PROMPTS))],
        "temperature": [0.9 * (n % 2) for n in range(len(PROMPTS))],
        "mark": [n * n for n in range(len(PROMPTS))],
    }
    values = {"out": folder / name, "token_ids": True, "max_tokens": 6, "max_failures": 30, **settings}
    return save_job(folder, table, **values)


def columns(directory: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = (
        pq.read_table(directory / "results.parquet").select([*SAME, "mark"]).to_pydict()
    )
    return found


def shards(folder: Path, count: int, world: type[World] = World, **settings: object) -> list[Path]:
    made = []
    for number in range(1, count + 1):
        config = job(folder, f"{number}", shard=f"{number}/{count}", **settings)
        run(config, world())
        made.append(folder / f"{number}")
    return made


@pytest.mark.parametrize("world", [World, TableWorld])
def test_merged_shards_are_byte_for_byte_the_undivided_run(tmp_path: Path, world: type[World]) -> None:
    whole = run(job(tmp_path, "whole"), world())
    parts = shards(tmp_path, 3, world)
    sizes = [pq.read_metadata(path / "results.parquet").num_rows for path in parts]
    assert sorted(sizes) == [8, 8, 8]
    merged = merge_runs(parts[::-1], tmp_path / "all")
    assert columns(tmp_path / "all") == columns(tmp_path / "whole")
    assert merged.exit_code == whole.exit_code
    for name in ("rows", "failures", "tokens", "slo"):
        assert merged.summary[name] == whole.summary[name]
    time = merged.summary["time"]
    assert time["attempts"] == 3


def test_a_shard_that_is_killed_goes_on_as_that_shard(tmp_path: Path) -> None:
    run(job(tmp_path, "whole"))
    parts = shards(tmp_path, 2)
    config = job(tmp_path, "2", shard="2/2", flush_rows=1)
    with pytest.raises(Crash):
        run(config, crash_at(6), fresh=True)
    with pytest.raises(UsageError, match=r"2 \(shard 2/2\) is not finished") as caught:
        merge_runs(parts, tmp_path / "all")
    assert "run the command that started it once more" in caught.value.hint
    with pytest.raises(MismatchError, match='shard: "2/2" there, "1/2" now'):
        run(config.model_copy(update={"shard": "1/2"}))
    with pytest.raises(MismatchError, match='"2/2" there, "all rows" now'):
        run(config.model_copy(update={"shard": None}))
    world = World()
    run(config, world)
    assert 0 < len(world.engine.served) < 12
    merge_runs(parts, tmp_path / "all")
    assert columns(tmp_path / "all") == columns(tmp_path / "whole")


def refusal(parts: list[Path], out: Path) -> SpecbatchError:
    with pytest.raises(SpecbatchError) as caught:
        merge_runs(parts, out)
    assert not (out / "results.parquet").exists()
    return caught.value


def test_what_does_not_belong_together_is_refused_with_what_to_do(tmp_path: Path) -> None:
    first, second, third = shards(tmp_path, 3)
    out = tmp_path / "all"
    missing = refusal([first, third], out)
    assert (missing.what, missing.exit_code) == ("missing: shard 2/3", ExitCode.USAGE)
    assert "run it with --shard 2/3" in missing.hint
    assert "are the same run" in refusal([first, second, third, first], out).what
    run(job(tmp_path, "again", shard="2/3"))
    assert "are both shard 2/3" in refusal([first, second, tmp_path / "again", third], out).what
    run(job(tmp_path, "half", shard="1/2"))
    assert "are not shards of one table" in refusal([first, tmp_path / "half"], out).what
    run(job(tmp_path, "whole"))
    assert "is a whole run" in refusal([first, tmp_path / "whole"], out).what
    run(job(tmp_path, "hot", shard="2/3", temperature=0.5, seed=3))
    hot = refusal([first, tmp_path / "hot", third], out)
    assert isinstance(hot, MismatchError)
    assert "different settings (seed: 0 and 3; temperature: 0.0 and 0.5)" in hot.what
    assert "is not a run directory" in refusal([first, tmp_path], out).what
    with locked(second):
        running = refusal([first, second, third], out)
    assert isinstance(running, LockedError)
    assert "is still running (process" in running.what
    assert "holds a run of its own" in merge_error(parts=[first, second, third], out=tmp_path / "whole")
    assert "is one of the runs to merge" in merge_error(parts=[first, second, third], out=first)


def merge_error(parts: list[Path], out: Path) -> str:
    with pytest.raises(SpecbatchError) as caught:
        merge_runs(parts, out)
    return caught.value.what


def test_shards_of_tables_with_other_deadlines_overlap_and_that_is_found(tmp_path: Path) -> None:
    first, second = shards(tmp_path, 2)
    table = pq.read_table(tmp_path / "in.parquet")
    turned = table.set_column(2, "deadline_s", pa.array([float(n) for n in range(table.num_rows)]))
    pq.write_table(turned, tmp_path / "in.parquet")
    config = JobConfig.model_validate(
        {**job(tmp_path / "elsewhere", "x").model_dump(), "input": (str(tmp_path / "in.parquet"),)}
    )
    run(config.model_copy(update={"shard": "2/2", "out": second}), fresh=True)
    with pytest.raises(InputError, match=r"row \d+ is in (no shard|2 shards)") as caught:
        merge_runs([first, second], tmp_path / "all")
    assert "different versions of the table" in caught.value.hint


def test_whole_runs_come_one_after_the_other_and_rows_are_numbered_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(job(tmp_path / name, "out", seed=4))
    outs = [tmp_path / name / "out" for name in ("a", "b")]
    merged = merge_runs(outs, tmp_path / "all")
    count = len(PROMPTS)
    found, one = columns(tmp_path / "all"), columns(outs[0])
    assert found["row_index"] == list(range(2 * count))
    assert found["text"] == one["text"] * 2
    messages = [message for message in found["error_message"] if message is not None]
    rows = [n for n, message in enumerate(found["error_message"]) if message is not None]
    assert [message.partition(":")[0] for message in messages] == [f"row {n}" for n in rows]
    assert merged.summary["rows"]["total"] == 2 * count


def test_a_merge_that_is_interrupted_leaves_nothing_half_done_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = shards(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", breaks)
        with pytest.raises(Crash):
            merge_runs(parts, tmp_path / "all")
    assert not (tmp_path / "all" / "results.parquet").exists()
    merge_runs(parts, tmp_path / "all")
    before = columns(tmp_path / "all")
    merge_runs(parts, tmp_path / "all")
    assert columns(tmp_path / "all") == before


def breaks(*_args: object, **_options: object) -> None:
    raise Crash


def test_merged_results_are_recognised_and_not_continued(tmp_path: Path) -> None:
    parts = shards(tmp_path, 2)
    merge_runs(parts, tmp_path / "all")
    world = World()
    whole = job(tmp_path, "all")
    pq.write_table(pq.read_table(whole.input[0]).slice(1), whole.input[0])
    with pytest.raises(MismatchError, match="holds merged results of 2 runs"):
        run(whole, world)
    assert world.opened == 0
    with pytest.raises(UsageError, match="merged results have no parts") as caught:
        run(job(tmp_path, "other"), reuse=tmp_path / "all")
    assert all(str(path) in caught.value.hint for path in parts)
    found = read_status(tmp_path / "all")
    assert (found.state, found.exit_code, found.rows_done) == ("finished", 0, len(PROMPTS))


def test_decisions_are_merged_with_the_rows_they_are_about(tmp_path: Path) -> None:
    run(job(tmp_path, "whole"), TableWorld())
    parts = shards(tmp_path, 2, TableWorld)
    merge_runs(parts, tmp_path / "all")
    found, one = (
        pq.read_table(tmp_path / name / "decisions.parquet").filter(pc.field("event") == "row").to_pylist()
        for name in ("all", "whole")
    )
    assert sorted((row["row_index"], row["tokens"]) for row in found) == sorted(
        (row["row_index"], row["tokens"]) for row in one
    )
    assert {row["attempt"] for row in found} == {1, 2}


@pytest.mark.parametrize(
    "settings", [{"limit": 2}, {"where": "mark > 9 and mark < 300"}, {"where": "mark < 0"}]
)
def test_shards_of_a_few_chosen_rows_and_of_none(tmp_path: Path, settings: dict[str, object]) -> None:
    run(job(tmp_path, "whole", **settings))
    parts = shards(tmp_path, 3, World, **settings)
    merge_runs(parts, tmp_path / "all")
    assert columns(tmp_path / "all") == columns(tmp_path / "whole")
    again = job(tmp_path, "3", shard="3/3", **settings)
    assert [run(again).ran, run(again).ran] == [True, False], "a shard that is done is recognised"


def test_results_of_another_run_and_runs_that_are_in_a_merged_one_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        run(job(tmp_path, name))
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    merge_runs([one, two], tmp_path / "both")
    assert "have one in common" in refusal([tmp_path / "both", one], tmp_path / "all").what
    (three / "results.parquet").write_bytes((two / "results.parquet").read_bytes())
    foreign = refusal([one, three], tmp_path / "all")
    assert (foreign.exit_code, "belongs to another run" in foreign.what) == (ExitCode.USAGE, True)
