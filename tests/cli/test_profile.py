"""``specbatch profile`` with a tiny model."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specbatch.cli.app import app
from specbatch.engine import profile_grid
from specbatch.engine.profile_grid import FULL
from specbatch.errors import ConfigError, ModelError, SpecbatchError, StorageError, UsageError
from specbatch.hardware.measure import Effort
from specbatch.report import profile_plot
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(profile_grid, "FULL", replace(FULL, contexts=(64, 256), effort=Effort(60.0, 1)))
    return tmp_path / "cache" / "profiles"


def run(*args: str) -> Result:
    environ = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    flags = ("--threads", "1", "--kv-memory", "16MiB", "--drafter", "suffix")
    return CliRunner(env=environ).invoke(app, ["profile", *flags, *args], prog_name="specbatch")


def test_a_profile_is_measured_kept_shown_and_not_measured_again(model: Path, cache: Path) -> None:
    first = run("--model", str(model), "--json")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    kept = next(cache.glob("*.json"))
    assert found["schema_version"] == 1
    assert found["path"] == str(kept)
    assert found["effort"] == "full"
    assert found["fingerprint"]["drafter"] == "suffix"
    assert {point["tokens"] for point in found["verify"]} >= {1, 2, 4, 8, 16, 32, 64}
    assert "measuring, 100%" in first.stderr
    before = kept.read_bytes()
    again = run("--model", str(model), "--plot", "profile.svg")
    assert kept.read_bytes() == before
    assert "--force measures again" in again.stderr
    assert "Target pass, ms" in again.stdout
    assert Path("profile.svg").read_text().startswith("<svg")
    forced = run("--model", str(model), "--force")
    assert forced.exit_code == 0
    assert kept.read_bytes() != before
    assert len(list(cache.glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("args", "kind", "reason"),
    [
        (("--plot", "profile.png"), UsageError, "drawn as .svg"),
        (("--model", "smollm3"), ModelError, "there is no model"),
        (("--page-size", "0"), ConfigError, "--page-size"),
        (("--device", "tpu"), ConfigError, "--device"),
    ],
)
def test_what_makes_no_sense_is_refused(
    args: tuple[str, ...], kind: type[SpecbatchError], reason: str, cache: Path
) -> None:
    result = run(*args)
    assert isinstance(result.exception, kind)
    assert reason in result.exception.what
    assert not cache.exists()


@pytest.mark.parametrize(
    ("plot", "kind", "reason"),
    [
        ("nowhere/profile.svg", UsageError, "there is no folder nowhere"),
        ("folder.svg", UsageError, "is a folder"),
        (f"{'x' * 300}.svg", StorageError, "File name too long"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(
    plot: str, kind: type[SpecbatchError], reason: str, model: Path, cache: Path
) -> None:
    Path("folder.svg").mkdir()
    result = run("--model", str(model), "--plot", plot)
    assert isinstance(result.exception, kind)
    assert reason in result.exception.what
    assert "measuring" not in result.stderr
    assert not list(cache.glob("*.json"))


def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_measured(
    model: Path, cache: Path
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    result = run("--model", str(model))
    assert isinstance(result.exception, StorageError)
    assert result.exception.what == f"the profile cannot be kept in {cache}: Not a directory"
    assert "SPECBATCH_CACHE" in result.exception.hint
    assert "measuring" not in result.stderr


def test_a_picture_that_the_disk_refuses_in_the_end_is_an_error_and_the_profile_is_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(profile_plot, "svg_of", full)
    result = run("--model", str(model), "--plot", "profile.svg")
    assert isinstance(result.exception, StorageError)
    assert "No space left" in result.exception.what
    assert len(list(cache.glob("*.json"))) == 1
    assert not Path("profile.svg").exists()


def test_too_little_memory_is_an_error(model: Path, cache: Path) -> None:
    result = run("--model", str(model), "--kv-memory", "30KiB")
    assert isinstance(result.exception, SpecbatchError)
    assert "--kv-memory" in result.exception.hint
    assert not cache.exists()
