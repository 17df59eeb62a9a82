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
from specbatch.table.decisions import decisions_schema
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
    return run(folder, "plain", policy="off")


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


def test_the_default_policy_says_that_it_measures_and_changes_no_text(
    folder: Path,
    plain: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPECBATCH_CACHE", str(folder / "cache"))
    rows = run(folder, "usual")
    assert [row["policy"] for row in rows] == ["auto"] * len(rows)
    assert texts(rows) == texts(plain)
    assert "measuring this machine for some seconds: there is no profile" in capsys.readouterr().err
    assert list((folder / "cache" / "profiles").glob("*.json"))
    run(folder, "again")
    assert "measuring" not in capsys.readouterr().err


def test_a_run_goes_on_with_another_policy(folder: Path, plain: list[dict[str, Any]]) -> None:
    first = run(folder, "mixed", policy="off", limit=2)
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


def decisions(folder: Path, out: str) -> list[dict[str, Any]]:
    table = pq.read_table(folder / out / "decisions.parquet")
    assert table.schema.remove_metadata() == decisions_schema()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_decisions_tell_of_every_row_how_it_was_decoded_and_hold_no_text(folder: Path) -> None:
    rows = run(folder, "told", policy="fixed:3", drafter="suffix")
    told = decisions(folder, "told")
    ends = {entry["row_index"]: entry for entry in told if entry["event"] == "row"}
    assert sorted(ends) == [i for i, row in enumerate(rows) if row["output_tokens"]]
    for index, entry in ends.items():
        assert entry["tokens"] == rows[index]["accepted"] + rows[index]["verifications"]
        assert (entry["drafted"], entry["tier"]) == (rows[index]["verified"], rows[index]["tier"])
    modes = {entry["mode"] for entry in told if entry["event"] == "change"}
    assert modes <= {"off", "chain"}
    run(folder, "full", policy="fixed:3", drafter="suffix", decisions="full")
    steps = [entry for entry in decisions(folder, "full") if entry["event"] in ("step", "change", "fallback")]
    assert len(steps) == sum(row["verifications"] for row in rows)
    run(folder, "off", policy="fixed:3", drafter="suffix", decisions="off")
    assert not (folder / "off" / "decisions.parquet").exists()


def test_owners_are_held_to_tiers_and_quota_and_the_summary_says_so(folder: Path) -> None:
    owned = pq.read_table(folder / "in.parquet").append_column(
        "owner", pa.array(["lab", "lab", "shop", "lab", None, "shop"])
    )
    pq.write_table(owned, folder / "owned.parquet")
    owners = {"lab": {"tiers": ["batch"]}, "shop": {"quota": 5}}
    rows = run(folder, "owned", input=(str(folder / "owned.parquet"),), owners=owners, max_rows_in_flight=1)
    assert [row["tier_reason"] for row in rows if row["owner"] == "lab"] == [
        None,
        "not_allowed",
        "not_allowed",
    ]
    assert (rows[1]["tier"], rows[1]["served_tier"]) == ("interactive", "standard")
    assert {row["tier_reason"] for row in rows if row["owner"] == "shop"} == {"over_quota"}
    summary = json.loads((folder / "owned" / "summary.json").read_text())
    moved = {tier: each["promises"]["moved"] for tier, each in summary["tiers"].items()}
    assert moved["interactive"] == {"not_allowed": 2, "over_quota": 1}
    attempts = json.loads((folder / "owned" / "run.json").read_text())["attempts"]
    assert attempts[0]["owner_tokens"]["shop"] >= 5


def test_going_on_keeps_the_decisions_and_what_owners_have_used_up(folder: Path) -> None:
    owned = pq.read_table(folder / "in.parquet").append_column("owner", pa.array(["shop"] * len(PROMPTS)))
    pq.write_table(owned, folder / "shop.parquet")
    settings: dict[str, object] = {
        "input": (str(folder / "shop.parquet"),),
        "owners": {"shop": {"quota": 3}},
        "policy": "fixed:2",
        "drafter": "suffix",
        "max_rows_in_flight": 1,
    }
    first = run(folder, "shop", limit=2, **settings)
    before = [entry for entry in decisions(folder, "shop") if entry["event"] == "row"]
    rows = run(folder, "shop", **settings)
    ends = [entry for entry in decisions(folder, "shop") if entry["event"] == "row"]
    assert before == ends[: len(before)]
    assert sorted(entry["row_index"] for entry in ends) == [
        i for i, row in enumerate(rows) if row["output_tokens"]
    ]
    assert texts(rows[:2]) == texts(first)
    # The first attempt has used the quota up: in the second all are served under the default tier.
    assert {row["tier_reason"] for row in rows[2:] if row["tier"] == "interactive"} == {"over_quota"}
    used = [attempt["owner_tokens"]["shop"] for attempt in manifest(folder, "shop")["attempts"]]
    assert used[0] >= 3
    assert used[1] > 0


def manifest(folder: Path, out: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / out / "run.json").read_text())
    return content
