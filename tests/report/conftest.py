"""Finished nights that tests look at; those that break something take a copy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.nights import NightEngine, job, run_night


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``night-0`` to ``night-2``, and ``plain``: the rows of ``night-0`` without drafts."""
    folder = tmp_path_factory.mktemp("nights")
    for night in range(3):
        run_night(job(folder, night=night), NightEngine(seed=night, speed=1 + 0.1 * night), night)
    run_night(job(folder, out=folder / "plain", policy="off"), NightEngine(speed=0.8, drafts=False))
    return folder


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Moments are shown in the reader's zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
