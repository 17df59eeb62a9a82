"""validate, status, schema, doctor, convert, completion; what happens when nobody reads."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ModelError, UsageError
from specbatch.job.estimate import Estimate, Speed
from specbatch.job.validate import Deadlines, validate_job
from specbatch.models.resolve import bytes_on_disk
from specbatch.report.status import read_status
from specbatch.table.rundir import locked
from tests.cli.console import Done, called, settings
from tests.job import fake_engine
from tests.tiny_models import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
AWKWARD = ROOT / "sample_data" / "awkward.parquet"


def as_json(result: Done) -> dict[str, Any]:
    """The one object on stdout."""
    content: dict[str, Any] = json.loads(result.stdout)
    assert content["schema_version"] == 1
    return content


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


@pytest.mark.model
def test_validate_counts_what_a_run_would_refuse(tmp_path: Path) -> None:
    result = called("validate", str(AWKWARD), "--json", cwd=tmp_path)
    found = as_json(result)
    expected = [code for code in pq.read_table(AWKWARD)["expect"].to_pylist() if code != "answered"]
    assert {fault["code"]: fault["rows"] for fault in found["faults"]} == {
        code: expected.count(code) for code in expected
    }
    assert found["refused_rows"] == len(expected)
    assert result.returncode == found["exit_code"] == 1
    assert all(1 <= len(fault["first"]) <= 3 for fault in found["faults"])
    assert not list(tmp_path.iterdir())


@pytest.mark.model
def test_validate_of_a_good_table_says_how_long_it_would_take(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b", "a"], "deadline_s": [1.0, 4.0, -1.0], "max_tokens": [100, 100, 100]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    config = JobConfig(input=(str(tmp_path / "t.parquet"),))
    found = validate_job(config, 1000, Speed(50.0, 0.0), time.time())
    assert found.exit_code == 0
    assert found.estimate == Estimate(tokens_per_s=50.0, loading_s=0.0, seconds=6.0, missed_deadlines=1)
    assert found.deadlines == Deadlines(rows=3, past=1, earliest_s=1.0, latest_s=4.0)
    assert found.repeated_prompts.rows == 1
    assert found.repeated_prompts.first == ((2, 0),)
    assert found.tokens is not None
    assert found.tokens.sampled_rows == found.tokenised_rows == 3
    dropped = validate_job(config.model_copy(update={"late": "drop"}), 1000, None, time.time())
    assert dropped.exit_code == 1
    assert [(fault.code, fault.rows) for fault in dropped.faults] == [("deadline_passed", 1)]
    assert validate_job(config, 1, None, time.time()).tokenised_rows == 1


def test_validate_says_that_loading_the_model_counts_into_the_time_to_the_first_token(tmp_path: Path) -> None:
    table = {"prompt": ["a", "b", "c"], "ttft_slo_ms": [None, 250.0, 9000.0]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    told = " ".join(called("validate", "t.parquet", cwd=tmp_path).stdout.split())
    assert "1st token 2 rows promised within 0.25 s at the tightest; the clock starts with the run" in told
    assert "loading the model (seconds) counts" in told
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "t.parquet")
    assert "1st token" not in called("validate", "t.parquet", cwd=tmp_path).stdout


def test_validate_counts_loading_the_model_into_its_estimate(tmp_path: Path) -> None:
    table = {"prompt": ["a", "b", ""], "deadline_s": [2.5, 9.0, 1.0], "max_tokens": [10, 10, 10]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    weights = tmp_path / "m.gguf"
    with weights.open("wb") as file:
        file.truncate(100_000_000)

    def estimate(*flags: str) -> dict[str, Any]:
        args = ("validate", "t.parquet", "--model", "m.gguf", "--tokens-per-s", "100", *flags)
        estimated: dict[str, Any] = as_json(called(*args, "--json", cwd=tmp_path))["estimate"]
        return estimated

    assert estimate() == {"tokens_per_s": 100, "loading_s": 2.5, "seconds": 2.7, "missed_deadlines": 1}
    assert estimate("--loading-s", "2")["missed_deadlines"] == 0
    assert estimate("--loading-s", "9")["missed_deadlines"] == 2, "the refused row is nobody's miss"
    told = called("validate", "t.parquet", "--model", "m.gguf", "--tokens-per-s", "100", cwd=tmp_path).stdout
    assert "3s at most at 100 tokens/s, 2.5 s to load the model included; 1 deadlines" in " ".join(
        told.split()
    )
    alone = called("validate", "t.parquet", "--loading-s", "2", cwd=tmp_path)
    assert (alone.returncode, "give --tokens-per-s N" in alone.stderr) == (2, True)


@pytest.mark.model
def test_the_size_of_a_model_is_that_of_its_weights(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    size = (directory / "model.safetensors").stat().st_size
    assert bytes_on_disk(str(directory)) == size
    assert bytes_on_disk("smollm2-135m") > 50e6
    assert bytes_on_disk("someone/not-here") == 0


@pytest.mark.model
def test_validate_tokenises_every_row_that_might_be_too_long(tmp_path: Path) -> None:
    prompts = ["short", "word " * 9000, "short", "\u00e9" * 4200, "b"]
    pq.write_table(pa.table({"prompt": prompts, "max_tokens": [8, 8, 8, 8, 8188]}), tmp_path / "t.parquet")
    found = validate_job(JobConfig(input=(str(tmp_path / "t.parquet"),)), 0, None, time.time())
    assert found.tokenised_rows == 3
    assert [(fault.code, [example.row for example in fault.first]) for fault in found.faults] == [
        ("prompt_too_long", [1]),
        ("max_tokens_exceeds_context", [4]),
    ]


def test_validate_without_the_model_says_what_it_could_not_check(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["x", None]}), tmp_path / "t.parquet")
    result = called("validate", "t.parquet", cwd=tmp_path, SPECBATCH_CACHE=str(tmp_path / "empty"))
    assert result.returncode == 1
    assert "smollm2-135m is not on this machine yet" in " ".join(result.stdout.split())
    assert "1 row null_prompt" in result.stdout
    with pytest.raises(ModelError):
        validate_job(JobConfig(input=(str(tmp_path / "t.parquet"),), model="smollm3"), 0, None, time.time())


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
