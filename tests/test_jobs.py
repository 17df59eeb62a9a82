"""Every job file in ``jobs/`` loads and points at files that exist; what starts them says what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from specbatch.cli import clean, run
from specbatch.job.nights import run_directory
from specbatch.settings import load_config

FOLDER = Path(__file__).resolve().parent.parent / "jobs"
JOBS = sorted(FOLDER.glob("*.toml"))
UNITS = sorted((FOLDER / "systemd").iterdir())
COMMANDS = {"run": run.app, "clean": clean.app}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_job_file_loads(path: Path) -> None:
    config = load_config({}, job_file=path, environ={})
    assert config.input
    assert all(Path(name).is_file() for name in config.input)


def test_there_are_job_files() -> None:
    assert {"smoke.toml", "nightly.toml", "throughput.toml"} <= {path.name for path in JOBS}


def test_flags_beat_the_job_file() -> None:
    smoke = next(path for path in JOBS if path.name == "smoke.toml")
    assert load_config({"limit": 3}, job_file=smoke, environ={}).limit == 3


def test_a_night_has_its_date_and_its_end() -> None:
    config = load_config({}, job_file=FOLDER / "nightly.toml", environ={})
    evening = 1.8e9 - 1.8e9 % 86400 + 22 * 3600
    assert run_directory(config, evening).name == "2027-01-15"
    assert config.run_deadline(evening) == evening + 8 * 3600


@pytest.mark.parametrize("path", [FOLDER / "crontab", *UNITS], ids=lambda path: path.name)
def test_commands_have_flags_that_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    found = re.findall(r"bin/specbatch (\w+) (.*)$", text, re.MULTILINE)
    assert found or "specbatch-nightly" not in path.name or path.suffix == ".timer"
    for name, arguments in found:
        known = {flag for item in typer.main.get_command(COMMANDS[name]).params for flag in item.opts}
        assert set(re.findall(r"--[a-z-]+", arguments)) <= known


def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    for path in UNITS:
        # The program of another machine is not here; everything else is as shipped.
        text = path.read_text("utf-8").replace("/srv/reviews/.venv/bin/specbatch", "/bin/true")
        (tmp_path / path.name).write_text(
            re.sub(r"^(User|WorkingDirectory)=.*$", "", text, flags=re.MULTILINE)
        )
    files = [str(tmp_path / path.name) for path in UNITS]
    done = subprocess.run([analyze, "verify", *files], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "specbatch" in line]
    assert (done.returncode, complaints) == (0, [])
