"""Promised times per token that a machine cannot keep are named before the run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from specbatch import __version__
from specbatch.config import JobConfig
from specbatch.engine.profile_store import save_profile
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.hardware.processor import processor_name
from specbatch.hardware.threads import usable_cores
from specbatch.job.reach import PerToken
from specbatch.job.validate import validate_job
from specbatch.models.resolve import resolve_model
from specbatch.schedule.pace import AT_BEST
from tests.cli.console import called
from tests.hardware.costs import HERE, pass_s, table
from tests.job.jobs import save_job
from tests.tiny_models import write_tiny_model

PLAIN_MS = 1e3 * pass_s(1, 1, 64)
PROMISES = [None, 1.0, AT_BEST * PLAIN_MS - 0.1, AT_BEST * PLAIN_MS + 0.1]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    return write_tiny_model(tmp_path / "tiny", "llama")


def job(tmp_path: Path, model: Path, **settings: object) -> JobConfig:
    columns: dict[str, object] = {"prompt": list("abcd"), "tpot_slo_ms": PROMISES}
    return save_job(tmp_path / "job", columns, model=str(model), max_tokens=8, **settings)


def here(model: Path) -> Fingerprint:
    """What a profile of this machine and model is found by."""
    files = resolve_model(str(model), report=lambda _line: None)
    return replace(
        HERE,
        processor=processor_name(),
        cores=usable_cores(),
        threads=usable_cores(),
        model_digest=files.digest,
        quantization=files.quantization,
        specbatch=__version__,
    )


def judged(config: JobConfig) -> PerToken:
    return validate_job(config, 0, None, time.time()).per_token


def test_rows_that_are_promised_less_than_a_row_alone_takes_are_named(tmp_path: Path, model: Path) -> None:
    save_profile(table(here(model)))
    found = judged(job(tmp_path, model, policy="off"))
    assert found.rows == 3
    assert found.tightest_ms == 1.0
    assert found.reachable_ms == pytest.approx(AT_BEST * PLAIN_MS)
    assert (found.out_of_reach, found.first, found.not_judged) == (2, (1, 2), "")
    drafting = judged(job(tmp_path, model, policy="fixed", drafter="head"))
    # Some drafts of suffix+head, which the profile is about, are free.
    shares = sum(0.75**depth for depth in range(5))
    assert drafting.reachable_ms == pytest.approx(AT_BEST * 1e3 * pass_s(5, 1, 64) / shares)
    assert drafting.first == (1,)


def test_a_profile_of_something_else_judges_nothing(tmp_path: Path, model: Path) -> None:
    config, mine = job(tmp_path, model), here(model)
    assert "there is no profile" in judged(config).not_judged
    strangers = (
        {"processor": "another"},
        {"threads": 99},
        {"model_digest": "c" * 64},
        {"quantization": "q4_0"},
        {"specbatch": "0.0.1"},
        {"drafter": "none", "drafter_digest": ""},
    )
    for changes in strangers:
        save_profile(table(replace(mine, **changes)))
    found = judged(config)
    assert "there is no profile" in found.not_judged
    assert (found.rows, found.out_of_reach, found.reachable_ms) == (3, None, None)


def test_validate_says_which_rows_or_why_it_cannot(tmp_path: Path, model: Path) -> None:
    args = ("validate", job(tmp_path, model).input[0], "--model", str(model), "--policy", "off")

    def told() -> str:
        result = called(*args, cwd=tmp_path, SPECBATCH_CACHE=str(tmp_path / "cache"))
        assert result.returncode == 0
        return " ".join(result.stdout.split())

    assert "per token 3 rows promised within 1.00 ms at the tightest; whether that is out of reach" in told()
    save_profile(table(here(model)))
    assert "2 less than the 9.24 ms that a row alone takes at best by this machine's profile" in told()
    assert "out of reach (row 1, 2)" in told()
