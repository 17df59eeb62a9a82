"""``specbatch validate``: what it counts, estimates and says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.config.places import Shard
from specbatch.errors import ModelError, RowFault
from specbatch.job.estimate import Estimate, Speed
from specbatch.job.validate import Deadlines, validate_job
from specbatch.models.resolve import bytes_on_disk
from specbatch.table.fetch import RowFetcher
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool
from specbatch.table.stripes import read_rows
from tests.cli.console import as_json, called
from tests.tiny_models import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
AWKWARD = ROOT / "sample_data" / "awkward.parquet"


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


def test_rows_of_unknown_tiers_are_refused_and_counted_under_no_tier(tmp_path: Path) -> None:
    tiers = pa.array([b"batch", b"gold", None, b"standard", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": list("abcde"), "tier": tiers}), tmp_path / "t.parquet")
    found = as_json(called("validate", "t.parquet", "--json", cwd=tmp_path))
    assert found["tiers"] == {"standard": 2, "batch": 1}
    assert {fault["code"]: fault["rows"] for fault in found["faults"]} == {
        "unknown_tier": 1,
        "invalid_utf8": 1,
    }
    pq.write_table(pa.table({"prompt": ["a"], "tier": ["gold"]}), tmp_path / "t.parquet")
    assert "\ntiers       none\n" in called("validate", "t.parquet", cwd=tmp_path).stdout


@pytest.mark.parametrize("shard", ["1/3", "2/3", "3/3"])
def test_validate_of_a_shard_describes_the_rows_that_a_run_of_it_would_have(
    tmp_path: Path, shard: str
) -> None:
    columns = {
        "prompt": ["p", "", None, *(f"p{row % 9}" for row in range(27))],
        "id": [f"id {row % 25}" for row in range(30)],
        "deadline_s": [float((7 * row) % 30 - 3) for row in range(30)],
        "max_tokens": range(1, 31),
        "tier": ["batch", "gold", "standard"] * 10,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    config = JobConfig(
        input=(str(tmp_path / "t.parquet"),),
        shard=shard,
        model=str(write_tiny_model(tmp_path / "m", "llama")),
    )
    found = validate_job(config, 0, Speed(1.0, 0.0), 0.0)
    parser, table = RowParser.of(config, 0.0), InputTable.open(config)
    with Spool(tmp_path) as spool:
        read = read_rows(table, parser, spool, Shard.of(shard), lambda: None)
        fetcher, refused, codes, tokens = RowFetcher(read.index, parser, read.spool), set(), set(), 0
        for row in range(len(read.index)):
            try:
                tokens += fetcher.fetch(row).params.max_tokens
            except RowFault as fault:
                refused.add(int(read.table.picked[row]))  # type: ignore[index]
                codes.add(fault.code)
    assert (found.rows, found.shard, found.job_rows) == (10, shard, 30)
    assert (found.refused_rows, {fault.code for fault in found.faults}) == (len(refused), codes)
    assert {example.row for fault in found.faults for example in fault.first} <= refused
    assert found.max_output_tokens == tokens
    assert found.estimate is not None
    assert found.estimate.seconds == tokens
    assert sum(found.tiers.values()) == 10 - sum(f.rows for f in found.faults if f.code == "unknown_tier")
    told = called("validate", "t.parquet", "--shard", shard, cwd=tmp_path).stdout
    assert f"input       10 rows (shard {shard} of 30 rows) in t.parquet" in told


def test_validate_shows_short_promises_in_milliseconds(tmp_path: Path) -> None:
    table = {"prompt": ["a", "b"], "deadline_s": [0.003, 75.0], "ttft_slo_ms": [0.4, 9000.0]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    told = " ".join(called("validate", "t.parquet", cwd=tmp_path).stdout.split())
    assert "started now, they have 3.00 ms to 1m15s" in told
    assert "promised within 0.40 ms at the tightest" in told
