"""Every job file in ``jobs/`` loads, and points at files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbatch.settings import load_config

JOBS = sorted((Path(__file__).resolve().parent.parent / "jobs").glob("*.toml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_job_file_loads(path: Path) -> None:
    config = load_config({}, job_file=path, environ={})
    assert config.input
    assert all(Path(name).is_file() for name in config.input)


def test_there_are_job_files() -> None:
    assert {"smoke.toml", "nightly.toml"} <= {path.name for path in JOBS}


def test_flags_beat_the_job_file() -> None:
    smoke = next(path for path in JOBS if path.name == "smoke.toml")
    assert load_config({"limit": 3}, job_file=smoke, environ={}).limit == 3
