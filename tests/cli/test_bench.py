"""``specbatch bench`` with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from specbatch.cli.app import app
from specbatch.cli.bench import DEFAULT_POLICIES, parse_policies
from specbatch.errors import ConfigError, InputError, ModelError, SpecbatchError, UsageError
from tests.tiny_models import write_tiny_model

WORKLOAD = """\
max_tokens = 6
max_rows_in_flight = 4

[tiers.tight]
priority = 0

[workload]
prompts = ["The quick brown fox.", "She sells sea shells.", "A journey begins.", "def total(prices):"]
rows = 4

[workload.tiers]
tight = { rows = 0.25, tpot = "0.5x", ttft = "100s" }
batch = { rows = 0.75 }
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "w.toml").write_text(WORKLOAD)
    return tmp_path


def run(*args: str) -> Result:
    environ = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    flags = ("--threads", "1", "--kv-memory", "16MiB", "--drafter", "suffix")
    return CliRunner(env=environ).invoke(app, ["bench", *args, *flags], prog_name="specbatch")


def test_policies_are_compared_on_a_workload(model: Path, folder: Path) -> None:
    policies = ("--policies", "off,fixed:2,auto", "--repeats", "1")
    result = run("w.toml", "--model", str(model), *policies, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["policies"] == ["off", "fixed:2", "auto"]
    assert found["machine"]["drafter"] == "suffix"
    case = found["cases"][0]
    assert case["rows"] == 4
    assert (case["energy"]["method"], case["energy"]["scope"]) == ("none", None) or case["energy"]["scope"]
    assert case["promises_s"]["tight"]["TPOT"] == pytest.approx(0.5 * case["plain_decoding"]["tpot_s"])
    assert case["promises_s"]["tight"]["TTFT"] == 100.0
    assert set(case["policies"]) == {"off", "fixed:2", "auto"}
    assert set(case["policies"]["auto"]["tiers"]) == {"tight", "batch"}
    assert not any(each["differing_rows"] for each in case["policies"].values())
    assert case["policies"]["auto"]["pass_prediction"]["steps"] > 0
    assert case["policies"]["off"]["throughput_to_off"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert "repeat 1 of 1, auto" in result.stderr


def test_a_table_is_a_workload_of_its_rows(model: Path, folder: Path) -> None:
    columns = {
        "prompt": ["One fox.", "", "Two dogs."],
        "tpot_slo_ms": [1e6, None, None],
        "max_tokens": [3, 3, 4],
    }
    pq.write_table(pa.table(columns), "t.parquet")
    result = run("t.parquet", "--model", str(model), "--policies", "off,priority", "--repeats", "1")
    assert result.exit_code == 0, result.output
    assert "32 rows in flight: 2 rows, 1 repeat" in result.stdout
    assert "left out: 1 of 3 rows cannot be answered; row 1:" in result.stderr
    assert "standard: 2 rows" in result.stdout
    assert "100%" in result.stdout


@pytest.mark.parametrize(
    ("args", "kind", "reason"),
    [
        (("w.toml", "--policies", "off,turbo"), UsageError, "'turbo' is no policy"),
        (("w.toml", "--policies", "off,off"), UsageError, "is there twice"),
        (("none.toml",), ConfigError, "no such workload"),
        (("none.parquet",), InputError, "none.parquet"),
        (("w.toml", "--model", "smollm3"), ModelError, "there is no model"),
    ],
)
def test_what_makes_no_sense_is_refused(
    args: tuple[str, ...], kind: type[SpecbatchError], reason: str, model: Path, folder: Path
) -> None:
    given = args if "--model" in args else (*args, "--model", str(model))
    result = run(*given)
    assert isinstance(result.exception, kind)
    assert reason in result.exception.what


def test_the_policies_of_the_default_are_policies() -> None:
    assert len(parse_policies(DEFAULT_POLICIES)) == 8
