"""status, schema, doctor, convert, completion; what happens when nobody reads."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.errors import UsageError
from specbatch.report.status import read_status
from specbatch.table.rundir import locked
from tests.cli.console import as_json, called, settings
from tests.job import fake_engine

ROOT = Path(__file__).resolve().parents[2]
AWKWARD = ROOT / "sample_data" / "awkward.parquet"


def start_fake_run(folder: Path) -> subprocess.Popen[bytes]:
    pq.write_table(pa.table({"prompt": [f"p{row}" for row in range(80)]}), folder / "t.parquet")
    command = [sys.executable, fake_engine.__file__, "t.parquet", "t.out", "0.05"]
    process = subprocess.Popen(command, cwd=folder, env=settings(PYTHONPATH=str(ROOT)))
    limit = time.monotonic() + 60
    while not list(folder.glob("t.out/parts/part-*")) and time.monotonic() < limit:
        time.sleep(0.02)
    return process


@pytest.mark.model
def test_commands_that_only_look_import_nothing_heavy(tmp_path: Path) -> None:
    with locked(tmp_path / "night.out"):
        (tmp_path / "night.out" / "run.json").write_text("{}")
    commands = (["validate", str(AWKWARD)], ["status", "night.out"], ["schema"], ["doctor"])
    script = (
        "import sys\nfrom specbatch.cli.app import app\n"
        f"for command in {commands}:\n"
        "    try:\n        app(command)\n"
        "    except SystemExit as end:\n        print(command[0], end.code)\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=settings(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.splitlines()
    assert lines[-1] == "[]"
    assert {"validate 1", "status 0", "schema 0"} < set(lines)


def test_status_of_a_living_a_killed_and_a_finished_run(tmp_path: Path) -> None:
    process = start_fake_run(tmp_path)
    alive = as_json(called("status", "t.out", "--json", cwd=tmp_path))
    assert (alive["state"], alive["process"], alive["rows_total"]) == ("running", process.pid, 80)
    assert 0 < alive["rows_done"] < 80
    limit = time.monotonic() + 60
    while read_status(tmp_path / "t.out").rows_per_s is None and time.monotonic() < limit:
        time.sleep(0.02)  # noted a little after the rows are safe
    process.send_signal(signal.SIGKILL)
    process.wait()
    dead = asdict(read_status(tmp_path / "t.out"))
    assert (dead["state"], dead["process"], dead["exit_code"], dead["attempts"]) == ("killed", None, None, 1)
    assert alive["rows_done"] <= dead["rows_done"] < 80
    assert dead["rows_per_s"] > 0
    assert dead["last_commit"] > dead["started"]
    assert fake_engine.main(str(tmp_path / "t.parquet"), str(tmp_path / "t.out"), "0") == 0
    done = asdict(read_status(tmp_path / "t.out"))
    assert (done["state"], done["rows_done"], done["attempts"], done["exit_code"]) == ("finished", 80, 2, 0)
    assert not done["problems"]


def test_status_tells_what_it_can_of_a_damaged_directory(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": [f"p{row}" for row in range(6)]}), tmp_path / "t.parquet")
    run = tmp_path / "t.out"
    assert fake_engine.main(str(tmp_path / "t.parquet"), str(run), "0") == 0
    (run / "results.parquet").unlink()
    first = min((run / "parts").glob("part-*"))
    first.write_bytes(first.read_bytes()[:50])
    found = read_status(run)
    assert found.state == "finished"
    assert [problem.split(":")[0] for problem in found.problems] == [
        f"parts/{first.name}",
        "results.parquet",
    ]
    (run / "run.json").write_text("{")
    found = read_status(run)
    assert (found.state, found.rows_done, found.rows_total) == ("unknown", 5, None)
    assert any(problem.startswith("run.json: ") for problem in found.problems)
    (run / "run.json").unlink()
    assert any("run.json: missing" in problem for problem in read_status(run).problems)


def test_status_of_a_folder_that_is_no_run_directory_names_those_in_it(tmp_path: Path) -> None:
    with locked(tmp_path / "night.out"):
        (tmp_path / "night.out" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a run directory") as caught:
        read_status(tmp_path)
    assert f"there is {tmp_path / 'night.out'}" in caught.value.hint
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-000001.parquet").write_bytes(b"")
    assert read_status(tmp_path).problems, "what is left of a run directory still tells what it can"


def test_schema_lists_input_and_output(tmp_path: Path) -> None:
    found = as_json(called("schema", "--json", cwd=tmp_path))
    assert {"prompt", "deadline"} <= {column["name"] for column in found["input"]}
    assert {"name": "text", "type": "string", "nullable": True, "meaning": "the answer"} in found["output"]


def test_doctor_describes_the_machine_and_what_is_missing(tmp_path: Path) -> None:
    cache = str(tmp_path / "none")
    result = called("doctor", "--json", cwd=tmp_path, SPECBATCH_CACHE=cache)
    found = as_json(result)
    assert found["packages"]["torch"]
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["gpus"]["error"] == ""
    assert bool(found["gpus"]["names"]) != bool(found["gpus"]["reason"])
    assert bool(found["kernels"]["isa"]) != bool(found["kernels"]["reason"])
    assert [meter["name"] for meter in found["meters"]] == ["RAPL", "NVML"]
    assert any("specbatch model pull" in finding["fix"] for finding in found["missing"])


@pytest.mark.parametrize("columns", [None, 60])
def test_doctor_wraps_its_lines(tmp_path: Path, columns: int | None) -> None:
    environ = {"SPECBATCH_CACHE": str(tmp_path / "none")} | ({"COLUMNS": str(columns)} if columns else {})
    lines = called("doctor", cwd=tmp_path, **environ).stdout.splitlines()
    assert max(map(len, lines)) <= (columns or 80)
    packages = next(place for place, line in enumerate(lines) if line.startswith("packages"))
    assert lines[packages + 1].startswith(" " * 12), "more of it stands under its beginning"
    assert any(line.startswith("            to get it: specbatch model pull") for line in lines)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("specbatch val", "validate"),
        ("specbatch validate --tok", "--tokens-per-s"),
        ("specbatch model p", "pull"),
    ],
)
def test_the_shell_completes_commands_and_flags(tmp_path: Path, words: str, expected: str) -> None:
    variables = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_SPECBATCH_COMPLETE": "complete_bash",
    }
    result = called(cwd=tmp_path, **variables)
    assert expected in result.stdout.split()


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_leaves_changes_neither_the_exit_code_nor_prints_a_traceback(
    tmp_path: Path, closed: str
) -> None:
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "t.parquet")
    args = {"stdout": ["schema"], "stderr": ["run", "none.parquet"]}[closed]
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writing}
    command = [sys.executable, "-m", "specbatch", *args]
    process = subprocess.Popen(command, cwd=tmp_path, env=settings(), text=True, **streams)  # type: ignore[call-overload]
    os.close(writing)
    out, err = process.communicate()
    assert process.returncode == {"stdout": 0, "stderr": 2}[closed]
    assert "Traceback" not in (out or "") + (err or "")


def test_a_signal_that_comes_while_commands_are_imported_is_answered(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from specbatch.cli import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main.main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=settings(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 143
    assert result.stderr.startswith("error: stopped by SIGTERM\n")


def test_looking_at_a_run_does_not_lock_out_one_that_starts(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        timer = threading.Timer(0.02, lambda: fcntl.flock(probe, fcntl.LOCK_UN))
        timer.start()
        with locked(tmp_path / "out"):
            timer.join()
