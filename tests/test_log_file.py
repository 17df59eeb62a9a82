"""Logs of many nights: rotated while they are written, levels, what still goes to stderr."""

from __future__ import annotations

import io
import json
import re
import runpy
from pathlib import Path

import pytest

from specbatch.errors import UsageError
from specbatch.progress import DatedReporter, JsonReporter, LogFile, Tally

from .cli.console import called

ROOT = Path(__file__).resolve().parent.parent


def test_a_log_that_is_renamed_goes_on_under_its_name_and_a_truncated_one_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "night.log"
    path.write_text("earlier\n")
    log = LogFile(path)
    for text in ("one", "two"):
        log.write(f"{text}\n")
        log.flush()
    path.rename(tmp_path / "night.log.1")
    log.write("three\n")
    log.flush()
    assert (tmp_path / "night.log.1").read_text() == "earlier\none\ntwo\n"
    assert path.read_text() == "three\n"
    with path.open("w"):
        pass  # as copytruncate does
    log.write("four\n")
    log.flush()
    assert path.read_text() == "four\n", "no hole of zeros in front"
    path.unlink()
    log.write("five\n")
    log.close()
    assert path.read_text() == "five\n"


def test_a_log_that_cannot_be_opened_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log file .*: No such file or directory"):
        LogFile(tmp_path / "none" / "night.log")


def test_lines_of_a_file_have_dates_and_warnings_go_to_stderr_too() -> None:
    log, alarms = io.StringIO(), io.StringIO()
    reporter = DatedReporter(log, alarms=alarms)
    reporter.phase("reading input")
    reporter.warning("yesterday is not finished")
    reporter.close()
    assert re.fullmatch(
        r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (reading input|warning: yesterday is not finished)\n){2}",
        log.getvalue(),
    )
    assert alarms.getvalue() == "warning: yesterday is not finished\n"


def test_json_lines_have_a_level() -> None:
    log = io.StringIO()
    reporter = JsonReporter(log)
    reporter.phase("reading input")
    reporter.warning("yesterday is not finished")
    reporter.close()
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["level"], first["event"], first["phase"]) == ("info", "phase", "reading input")
    assert (second["level"], second["event"], second["text"]) == (
        "warning",
        "message",
        "yesterday is not finished",
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_is_in_the_log_file_and_in_the_mail(tmp_path: Path, form: str) -> None:
    done = called("run", "none.parquet", "--log-file", "n.log", "--log-format", form, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: none.parquet: no such file\n  hint: ")
    (line,) = (tmp_path / "n.log").read_text().splitlines()
    if form == "json":
        found = json.loads(line)
        assert (found["level"], found["event"], found["exit_code"]) == ("error", "error", 2)
    else:
        assert line.endswith("error: none.parquet: no such file (exit code 2)")


def test_json_lines_have_the_documented_fields() -> None:
    tools = runpy.run_path(str(ROOT / ".ci" / "readme_block.py"))
    rows = tools["table"]((ROOT / "README.md").read_text("utf-8"), "table: log events")
    documented = {event: set(re.findall(r"\w+", fields)) for event, fields in rows}
    log = io.StringIO()
    reporter = JsonReporter(log)
    reporter.message("x")
    reporter.phase("reading input")
    reporter.begin(Tally(total=3))
    reporter.close()
    for line in map(json.loads, log.getvalue().splitlines()):
        assert set(line) - {"time", "level", "event"} <= documented[line["event"]]
    assert {"phase", "message", "progress", "end", "error"} == set(documented)
