"""``{date}`` in the name of the run directory: which night a start belongs to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, LockedError, UsageError
from specbatch.job.outcome import RunOutcome
from specbatch.table.lock import Holder, holder_of
from specbatch.table.rundir import locked

from .fake_engine import World
from .jobs import Crash, crash_at, run, save_job

EVENING = datetime(2026, 11, 29, 22, tzinfo=UTC).timestamp()
HOUR = 3600.0


def job(tmp_path: Path, name: str = "{date}", **settings: object) -> JobConfig:
    out = tmp_path / "nights" / name
    return save_job(tmp_path, {"prompt": ["a", "b", "c"]}, out=out, tz="UTC", flush_rows=1, **settings)


def started(config: JobConfig, wall: float, world: World | None = None, **start: object) -> RunOutcome:
    world = world or World()
    world.wall = lambda: wall
    return run(config, world, **start)


def stopped(config: JobConfig, wall: float) -> None:
    with pytest.raises(Crash):
        started(config, wall, crash_at(2))


def other_input(config: JobConfig) -> None:
    pq.write_table(pa.table({"prompt": ["x", "y"]}), config.input[0])


def test_every_night_has_the_date_of_its_first_start_in_the_jobs_zone(tmp_path: Path) -> None:
    config = job(tmp_path)
    late = config.model_copy(update={"tz": "Asia/Tokyo", "out": tmp_path / "tokyo" / "{date}"})
    assert started(config, EVENING).directory.name == "2026-11-29"
    assert started(late, EVENING).directory.name == "2026-11-30"
    assert started(config, EVENING + 24 * HOUR).directory.name == "2026-11-30"


def test_a_night_that_is_stopped_before_midnight_goes_on_after_it_in_its_own_directory(
    tmp_path: Path,
) -> None:
    config = job(tmp_path)
    stopped(config, EVENING)
    world = World()
    assert started(config, EVENING + 5 * HOUR, world).directory.name == "2026-11-29"
    assert world.engine.served == [2]
    assert any("belongs to the night of 2026-11-29" in line for line in world.reporter.said)
    again = World()
    assert not started(config, EVENING + 9 * HOUR, again).ran, "a look at it in the morning repeats nothing"
    assert [path.name for path in (tmp_path / "nights").iterdir()] == ["2026-11-29"]


def test_a_new_input_or_the_next_evening_begins_a_new_night_and_the_unfinished_one_is_told_of(
    tmp_path: Path,
) -> None:
    config = job(tmp_path)
    stopped(config, EVENING)
    evening = World()
    assert started(config, EVENING + 23 * HOUR, evening).directory.name == "2026-11-30"
    warnings = [line for line in evening.reporter.said if line.startswith("warning")]
    old = tmp_path / "nights" / "2026-11-29"
    assert len(warnings) == 1
    assert f"{old} is not finished: it ended with exit code 4" in warnings[0]
    assert f"the same command with --out {old} finishes it" in warnings[0]
    by_hand = config.model_copy(update={"out": old})
    assert started(by_hand, EVENING + 30 * HOUR).exit_code == ExitCode.OK
    other_input(config)
    assert started(config, EVENING + 26.5 * HOUR).directory.name == "2026-12-01", "another input, soon after"


def test_fresh_never_discards_another_night_and_retry_never_begins_one(tmp_path: Path) -> None:
    config = job(tmp_path)
    pq.write_table(pa.table({"prompt": ["a", "unspeakable"]}), config.input[0])
    assert started(config, EVENING).exit_code == ExitCode.ROW_FAILURES
    world = World()
    assert started(config, EVENING + 40 * HOUR, world, retry_failed=True).directory.name == "2026-11-29"
    assert started(config, EVENING + 3 * HOUR, fresh=True).directory.name == "2026-11-30"
    assert (tmp_path / "nights" / "2026-11-29" / "results.parquet").exists()
    other_input(config)
    with pytest.raises(UsageError, match=r"the input is not that of .*2026-11-30"):
        started(config, EVENING + 50 * HOUR, retry_failed=True)


def test_two_nights_do_not_run_side_by_side(tmp_path: Path) -> None:
    config = job(tmp_path)
    stopped(config, EVENING)
    first = tmp_path / "nights" / "2026-11-29"
    with locked(first), pytest.raises(LockedError) as caught:
        started(config, EVENING + 24 * HOUR)
    assert caught.value.exit_code == 75
    assert f"the run of 2026-11-29 is still going on in {first} (process " in caught.value.what
    assert " since 20" in caught.value.what
    assert not (tmp_path / "nights" / "2026-11-30").exists()


def test_what_is_no_night_is_left_out_and_patterns_repeat(tmp_path: Path) -> None:
    config = job(tmp_path, "{date}/run-{date}")
    for name in ("2026-11-28/run-2026-11-27", "2026-13-45/run-2026-13-45", "old/run-old"):
        (tmp_path / "nights" / name).mkdir(parents=True)
        (tmp_path / "nights" / name / "run.json").write_text("{}")
    assert started(config, EVENING).directory == tmp_path / "nights" / "2026-11-29" / "run-2026-11-29"


def test_shards_have_nights_of_their_own(tmp_path: Path) -> None:
    first = job(tmp_path, "{shard}/{date}", shard="1/2")
    assert started(first, EVENING).directory == tmp_path / "nights" / "1-of-2" / "2026-11-29"
    second = first.model_copy(update={"shard": "2/2"})
    with locked(tmp_path / "nights" / "1-of-2" / "2026-11-29"):
        assert started(second, EVENING).directory == tmp_path / "nights" / "2-of-2" / "2026-11-29"


def test_the_lock_says_who_holds_it_since_when(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with locked(tmp_path / "out"):
        holder = holder_of(tmp_path / "out")
        assert holder is not None
        assert str(holder).startswith(f"process {holder.process} on {holder.host} since 20")
    assert holder_of(tmp_path / "out") is None
    assert str(Holder.parse("4711\n")) == "process 4711"
    assert str(Holder.parse("x y")) == "process unknown"
