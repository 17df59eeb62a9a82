"""Streams that are closed or full, paths that the system does not take: an exit code, no traceback."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.report.page import Page
from tests.cli.console import called, settings


@pytest.mark.parametrize(
    "args",
    [
        ["validate", "a" * 300],
        ["validate", "t.parquet", "--model", "a" * 300],
        ["run", "t.parquet", "--out", "a" * 300],
        ["status", "a" * 300],
    ],
)
def test_a_path_that_the_system_does_not_take_is_one_clear_line(tmp_path: Path, args: list[str]) -> None:
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "t.parquet")
    done = called(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File name too long" in done.stderr


def test_what_is_printed_into_a_pipe_has_no_blanks_at_the_ends_of_lines(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["x", "y" * 300], "tier": ["gold", "t" * 99]}), tmp_path / "t.parquet")
    for args in (["validate", "t.parquet"], ["schema"], ["doctor"]):
        lines = called(*args, cwd=tmp_path).stdout.splitlines()
        assert len(lines) > 5
        assert [line for line in lines if line.endswith(" ")] == []


def test_a_page_for_a_terminal_is_left_to_the_library() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    written = {}
    for stream in (Terminal(), io.StringIO()):
        page = Page(stream, 40)
        page.fact("name", "word " * 20)
        page.path("results", "jobs.out")
        written[type(stream)] = stream.getvalue()
    assert " \n" in written[Terminal]
    assert written[io.StringIO].endswith("results     jobs.out\n")
    assert " \n" not in written[io.StringIO]


@pytest.mark.parametrize(
    ("closed", "args", "code"),
    [(">&-", "schema", 0), ("<&- >&- 2>&-", "schema", 0), ("2>&-", "validate none.parquet", 2)],
)
def test_streams_closed_from_the_start_change_no_exit_code(
    tmp_path: Path, closed: str, args: str, code: int
) -> None:
    command = f"{sys.executable} -m specbatch {args} {closed}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=settings(), capture_output=True, check=False
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "specbatch", "schema"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=settings(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr.startswith("error: stdout cannot be written: No space left")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say what it uses")
def test_a_limit_of_the_shell_bounds_the_memory_that_counts_as_free() -> None:
    kibibytes = 4_000_000
    script = "from specbatch.hardware.memory import available_bytes as f; print(f())"
    command = f"ulimit -v {kibibytes} && {sys.executable} -c '{script}'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1024 * kibibytes
