"""Five nights as cron starts them: fine, killed, too long, with bad rows, with another model."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig

from .jobs import run
from .night_program import Cron

ROWS = 40
HOUR = 3600.0
JOB = """\
input = "today.parquet"
out = "nights/{date}"
tz = "UTC"
deadline = "06:00"
late = "drop"
flush_rows = 1
token_ids = true
log_file = "nightly.log"
log_format = "json"
"""
COMMAND = ("run", "nightly.toml")


def evening(day: int) -> float:
    """22:30 of a day in November."""
    return datetime(2026, 11, day, 22, 30, tzinfo=UTC).timestamp()


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[Cron]:
    (tmp_path / "nightly.toml").write_text(JOB)
    program = Cron.open(tmp_path)
    yield program
    program.close()


def new_table(folder: Path, day: int, bad: int = 0) -> list[str]:
    """Tonight's rows: the ids."""
    prompts = ["" if row < bad else f"day {day}: {row % 30}" for row in range(ROWS)]
    ids = [f"{day}-{row}" for row in range(ROWS)]
    pq.write_table(pa.table({"id": ids, "prompt": prompts}), folder / "today.parquet")
    return ids


def parts_of(folder: Path, day: int) -> Path:
    return folder / "nights" / f"2026-11-{day}" / "parts"


def results(folder: Path, day: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        folder / "nights" / f"2026-11-{day}" / "results.parquet"
    ).to_pylist()
    return rows


@dataclass
class Tonight:
    """What a night has to come to."""

    day: int
    ids: list[str]
    texts: list[Any]

    @classmethod
    def begins(cls, folder: Path, day: int, bad: int = 0) -> Tonight:
        """Tonight's table, answered in one go elsewhere."""
        ids = new_table(folder, day, bad)
        config = JobConfig(input=(str(folder / "today.parquet"),), out=folder / "check", token_ids=True)
        run(config, fresh=True)
        return cls(day, ids, pq.read_table(folder / "check" / "results.parquet")["text"].to_pylist())

    def check(self, folder: Path) -> None:
        """Every row, once, in order, with the text of an undisturbed run."""
        rows = results(folder, self.day)
        assert [row["id"] for row in rows] == self.ids
        assert all(row["status"] in ("ok", "truncated", "rejected") for row in rows)
        assert [row["text"] for row in rows] == self.texts


def fine(cron: Cron) -> Tonight:
    night = Tonight.begins(cron.folder, 24)
    assert cron.at(evening(24), *COMMAND) == 0
    assert "exit code 0: all 40 rows succeeded" in cron.said(evening(24), "out")
    assert cron.said(evening(24)) == "", "cron mails the summary and nothing else"
    morning = evening(24) + 9 * HOUR
    assert cron.at(morning, *COMMAND) == 0
    assert "2026-11-24 is complete; nothing to do" in cron.said(morning)
    return night


def killed_and_started_again_after_midnight(cron: Cron) -> Tonight:
    night, parts = Tonight.begins(cron.folder, 25), parts_of(cron.folder, 25)
    pid = cron.start(evening(25), *COMMAND, slow=0.01)
    assert cron.end(pid, signal.SIGKILL, parts, 5) == -signal.SIGKILL
    (cron.folder / "nightly.log").rename(cron.folder / "nightly.log.1")
    assert cron.at(evening(25) + 2 * HOUR, *COMMAND) == 0
    return night


def still_running_when_the_next_is_due(cron: Cron) -> Tonight:
    night, gate = Tonight.begins(cron.folder, 26), cron.folder / "gate"
    pid = cron.start(evening(26), *COMMAND, gate=str(gate))
    cron.wait_for(parts_of(cron.folder, 26), 3)
    assert cron.at(evening(27), *COMMAND) == 75
    message = f"the run of 2026-11-26 is still going on in nights/2026-11-26 (process {pid} on "
    assert message in cron.said(evening(27))
    gate.touch()
    assert cron.wait(pid) == 0
    return night


def half_of_the_rows_bad(cron: Cron) -> Tonight:
    night = Tonight.begins(cron.folder, 28, bad=ROWS // 2)
    assert cron.at(evening(28), *COMMAND) == 1
    assert cron.said(evening(28)) == "failed: 20 of 40 rows failed (max_failures = 0)\n"
    assert [row["error_code"] for row in results(cron.folder, 28)] == ["empty_prompt"] * 20 + [None] * 20
    return night


def interrupted_and_then_the_model_changed(cron: Cron) -> Tonight:
    night, parts = Tonight.begins(cron.folder, 29), parts_of(cron.folder, 29)
    pid = cron.start(evening(29), *COMMAND, slow=0.01)
    assert cron.end(pid, signal.SIGTERM, parts, 5) == 143
    kept, later = sorted(path.name for path in parts.iterdir()), evening(29) + HOUR
    assert cron.at(later, *COMMAND, digest="model-2") == 2
    assert 'model_digest: "model-1" there, "model-2" now' in cron.said(later)
    assert sorted(path.name for path in parts.iterdir()) == kept, "kept until somebody decides"
    assert cron.at(later + 1, *COMMAND, "--fresh", digest="model-2") == 0
    return night


def test_five_nights_end_with_the_documented_codes_and_lose_nothing(cron: Cron) -> None:
    nights = [
        fine(cron),
        killed_and_started_again_after_midnight(cron),
        still_running_when_the_next_is_due(cron),
        half_of_the_rows_bad(cron),
        interrupted_and_then_the_model_changed(cron),
    ]
    for night in nights:
        night.check(cron.folder)
    check_log(cron.folder)
    check_retention(cron)


def check_log(folder: Path) -> None:
    """Every start has its end in the log, but for the one that was killed."""
    lines = [
        json.loads(line)
        for name in ("nightly.log.1", "nightly.log")
        for line in (folder / name).read_text().splitlines()
    ]
    ends = [(line["event"], line["exit_code"]) for line in lines if line["event"] in ("end", "error")]
    assert ends == [
        *[("end", 0), ("end", 0), ("end", 0), ("error", 75), ("end", 0), ("end", 1)],
        *[("error", 143), ("error", 2), ("end", 0)],
    ]
    assert {line["level"] for line in lines} == {"info", "error"}
    fine = next(line for line in lines if line["event"] == "end")
    assert list(fine)[3:] == [
        *("exit_code", "verdict", "ran", "run_directory", "rows", "output_tokens", "attainment"),
        "device_seconds",
    ]
    assert fine["rows"]["total"] == ROWS


def check_retention(cron: Cron) -> None:
    """A week later, the oldest nights go."""
    assert cron.at(evening(30), "clean", "--keep", "3", "nights", "--yes") == 0
    left = sorted(path.name for path in (cron.folder / "nights").iterdir())
    assert left == ["2026-11-26", "2026-11-28", "2026-11-29"]
