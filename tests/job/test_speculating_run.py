"""A run that speculates writes the texts of one that does not, and an account that adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ModelError
from specbatch.job.run import run_job
from tests.tiny_models import write_tiny_model

PROMPTS = ["the quick brown fox", "she sells sea shells", "the quick brown fox", "one step", "", "def total"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speculating")
    write_tiny_model(folder / "model", "qwen2")
    table = {
        "prompt": PROMPTS,
        "temperature": [0.0, 0.8, 0.8, 0.0, 0.0, 0.0],
        "tier": ["batch", "interactive"] * 3,
        "max_draft_tokens": [None, 2, None, 0, None, None],
    }
    pq.write_table(pa.table(table), folder / "in.parquet")
    return folder


def run(folder: Path, out: str, **settings: object) -> list[dict[str, Any]]:
    config = JobConfig.model_validate(
        {
            "input": (str(folder / "in.parquet"),),
            "model": str(folder / "model"),
            "out": folder / out,
            "max_tokens": 20,
            "token_ids": True,
            "max_failures": 1,
            "kv_memory": 2**22,
            "threads": 1,
            **settings,
        }
    )
    assert run_job(config).exit_code == 0
    rows: list[dict[str, Any]] = pq.read_table(folder / out / "results.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[dict[str, Any]]:
    return run(folder, "plain")


def texts(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["status"], row["text"], row["token_ids"]) for row in rows]


def test_texts_and_account(folder: Path, plain: list[dict[str, Any]]) -> None:
    model = str(folder / "model")
    rows = run(folder, "fast", policy="eagle", drafter="model", draft_model=model)
    assert texts(rows) == texts(plain)
    for row in rows:
        assert row["policy"] == "eagle"
        assert row["drafted"] == row["unselected"] + row["selected"]
        assert row["selected"] == row["pruned"] + row["verified"]
        assert row["verified"] == row["accepted"] + row["rejected"]
        if row["status"] in ("ok", "truncated"):
            caused = row["accepted"] + row["verifications"] + 1 - row["trimmed"]
            assert row["output_tokens"] == caused
            assert sum(row["accept_histogram"]) == row["verifications"]
    assert rows[3]["drafted"] == 0
    assert len(rows[1]["accept_histogram"]) <= 3
    assert rows[0]["target_passes"] < plain[0]["target_passes"]
    assert plain[0]["accept_histogram"] == [plain[0]["output_tokens"] - 1]
    summary = json.loads((folder / "fast" / "summary.json").read_text())
    drafts, engine = summary["speculation"], summary["engine"]
    assert drafts["accepted"] == engine["accepted"] == sum(row["accepted"] for row in rows)
    assert drafts["drafted"] == engine["drafted"] >= drafts["verified"] > 0
    assert drafts["draft_flops"] == pytest.approx(engine["draft_flops"])
    assert 0 < drafts["rejected_flop_share"] < 1
    assert (engine["drafter"], engine["draft_fault"]) == ("model", "")
    assert engine["steps"] < summary["compute"]["target_passes"]


def test_a_run_goes_on_with_another_policy(folder: Path, plain: list[dict[str, Any]]) -> None:
    first = run(folder, "mixed", limit=2)
    rows = run(folder, "mixed", policy="fixed:3", drafter="suffix")
    assert texts(rows) == texts(plain)
    assert texts(rows[:2]) == texts(first)
    assert [row["policy"] for row in rows[:4]] == ["off", "off", "fixed:3", "fixed:3"]


def test_a_draft_model_or_head_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        run(folder, "a", policy="fixed:2", drafter="model", draft_model="./nowhere")
    with pytest.raises(ModelError, match="there is no draft head for") as caught:
        run(folder, "b", policy="fixed:2", drafter="head")
    assert "--draft-head" in caught.value.hint
    with pytest.raises(ModelError, match="there is no draft head at"):
        run(folder, "c", policy="fixed:2", draft_head=folder / "nowhere")
