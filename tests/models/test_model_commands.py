"""``specbatch model``: output for people and for programs, and errors that end in exit code 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbatch.cli.model import app
from specbatch.errors import ModelError
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_list_shows_every_alias_and_whether_it_is_here() -> None:
    header, *rows = output("list").splitlines()
    assert re.split(r"  +", header) == ["ALIAS", "MODEL", "LICENSE", "DOWNLOAD", "ON DISK"]
    assert [re.split(r"  +", row) for row in rows] == [
        ["smollm2-135m", "SmolLM2-135M-Instruct (Q4_1/Q8_0)", "Apache-2.0", "93 MB", "no"]
    ]


def test_list_as_json() -> None:
    found = json.loads(output("list", "--json"))
    assert found["schema_version"] == 1
    assert [(model["alias"], model["on_disk"]) for model in found["models"]] == [("smollm2-135m", False)]


def test_info_describes_a_directory(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "qwen3")
    facts = json.loads(output("info", str(directory), "--json"))
    assert facts["architecture"] == "qwen3"
    assert facts["chat_template"] is True
    assert facts["bytes_on_disk"] == (directory / "model.safetensors").stat().st_size
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in output("info", str(directory)).splitlines())
    assert lines["parameters"] == f"{facts['parameters']:,}"
    assert lines["chat template"] == "yes"
    assert lines["digest"] == facts["digest"]


def test_info_never_fetches() -> None:
    with pytest.raises(ModelError, match="not on this machine") as caught:
        output("info")
    assert caught.value.exit_code == 2


def test_pull_prints_the_directory(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    assert output("pull", str(directory)) == f"{directory}\n"


def test_export_writes_the_directory_it_prints(tmp_path: Path) -> None:
    directory, target = write_tiny_model(tmp_path / "hf", "llama"), tmp_path / "out"
    assert output("export", str(directory), str(target), "--format", "hf") == f"{target}\n"
    assert (target / "model.safetensors").exists()
    assert json.loads(output("info", str(target), "--json"))["architecture"] == "llama"


def test_unknown_export_format_is_a_usage_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "x", str(tmp_path / "out"), "--format", "onnx"])
    assert done.exit_code == 2
    assert "onnx" in done.stderr
