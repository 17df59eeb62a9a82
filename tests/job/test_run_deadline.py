"""One deadline for the whole run: what it does to rows, and that going on does not move it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from specbatch.config import JobConfig, Tier
from specbatch.errors import ExitCode
from specbatch.rows import RawPrompt
from specbatch.schedule.overload import loosened
from specbatch.slo import Slo
from specbatch.table.parse import RowParser

from .fake_engine import World
from .jobs import Crash, crash_at, manifest, results, run, save_job

EVENING = datetime(2026, 11, 29, 22, tzinfo=UTC).timestamp()
SIX = datetime(2026, 11, 30, 6, tzinfo=UTC)


def job(tmp_path: Path, **settings: object) -> JobConfig:
    table: dict[str, object] = {"prompt": ["a", "b", "c"], "deadline_s": [60.0, None, 1e6]}
    return save_job(tmp_path, table, flush_rows=1, deadline="06:00 UTC", **settings)


def at(wall: float, world: World | None = None) -> World:
    world = world or World()
    world.wall = lambda: wall
    return world


def test_a_rows_own_earlier_deadline_wins_and_no_other_is_later_than_the_runs(tmp_path: Path) -> None:
    config = job(tmp_path)
    world = at(EVENING)
    assert run(config, world).exit_code == ExitCode.OK
    assert "the run is to be over at 2026-11-30 06:00:00 UTC, in 8h00m" in world.reporter.said
    own = datetime.fromtimestamp(EVENING + 60, UTC)
    assert [row["deadline"] for row in results(config)] == [own, SIX, SIX]
    assert all(row["slo_met"] for row in results(config)), "every row has a promise now"


def test_going_on_after_it_has_passed_does_not_move_it(tmp_path: Path) -> None:
    config = job(tmp_path, late="drop")
    with pytest.raises(Crash):
        run(config, at(EVENING, crash_at(1)))
    next_day = at(EVENING + 12 * 3600)
    assert run(config, next_day).exit_code == ExitCode.ROW_FAILURES
    line = "the run was to be over at 2026-11-30 06:00:00 UTC, 4h00m ago: rows that are left end expired"
    assert f"{line} (--late answer runs them)" in next_day.reporter.said
    assert next_day.opened == 0, "rows that are all over need no engine"
    assert [row["status"] for row in results(config)][1:] == ["expired", "expired"]
    assert {row["deadline"] for row in results(config)[1:]} == {SIX}
    assert manifest(config)["epoch"] == EVENING


def test_another_deadline_counts_from_the_first_start_too_and_fresh_begins_anew(tmp_path: Path) -> None:
    config = job(tmp_path, late="drop")
    with pytest.raises(Crash):
        run(config, at(EVENING, crash_at(1)))
    longer = config.model_copy(update={"deadline": "2026-11-30 18:00 UTC"})
    assert run(longer, at(EVENING + 12 * 3600)).exit_code == ExitCode.OK
    world = at(EVENING + 24 * 3600)
    assert run(config, world, fresh=True).exit_code == ExitCode.OK
    assert "the run is to be over at 2026-12-01 06:00:00 UTC, in 8h00m" in world.reporter.said


def test_late_rows_are_answered_unless_the_job_drops_them(tmp_path: Path) -> None:
    config = job(tmp_path)
    with pytest.raises(Crash):
        run(config, at(EVENING, crash_at(1)))
    assert run(config, at(EVENING + 12 * 3600)).exit_code == ExitCode.OK
    assert [(row["status"] in ("ok", "truncated"), row["deadline_met"]) for row in results(config)] == [
        (True, True),
        (True, False),
        (True, False),
    ]


def test_a_degraded_row_keeps_the_runs_deadline() -> None:
    parser = RowParser.of(JobConfig(input=("x",), deadline="06:00 UTC"), EVENING)
    raw: RawPrompt = parser.parse(0, "", {"prompt": b"x", "deadline_s": 60.0})
    assert raw.slo == Slo(deadline=60.0, until=8 * 3600.0)
    assert loosened(raw.slo, Tier(priority=9), 0.0).deadline == 8 * 3600.0
    assert loosened(raw.slo, Tier(priority=9, deadline_s=600), 0.0).deadline == 600
    assert loosened(raw.slo, Tier(priority=9, deadline_s=1e6), 0.0).deadline == 8 * 3600.0
    assert loosened(Slo(deadline=60.0), Tier(priority=9), 0.0).deadline is None
