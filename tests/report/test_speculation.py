"""The account of drafted tokens in the summary is the sum of the rows', and says what was wasted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.account import DraftAccount
from specbatch.config import JobConfig
from specbatch.report.speculation import speculation
from specbatch.report.summary import Summary, summarise
from specbatch.report.terminal import Ending, print_summary
from specbatch.rows import Answer, Status
from specbatch.table.manifest import Attempt, Manifest
from specbatch.table.schema import answers_to_batch, part_schema
from tests.golden_files import check

CAREFUL = DraftAccount(
    drafted=30,
    unselected=10,
    selected=20,
    verified=20,
    accepted=11,
    rejected=9,
    trimmed=1,
    verifications=6,
    accept_histogram=[1, 2, 1, 1, 1],
    draft_passes=20,
    draft_flops=3e6,
    rejected_flops=4e6,
)
WILD = DraftAccount(
    drafted=10,
    selected=10,
    verified=10,
    rejected=10,
    verifications=2,
    accept_histogram=[2],
    draft_flops=1e6,
    rejected_flops=5e6,
)


def answer(index: int, tier: str, drafts: DraftAccount) -> Answer:
    tokens = drafts.accepted + drafts.verifications + 1 - drafts.trimmed
    return Answer(
        index,
        f"{index:032x}",
        None,
        tier,
        Status.OK,
        text="a",
        token_ids=tuple(range(tokens)),
        first_token_at=0.5,
        finished_at=1.0,
        prefill_flops=1e6,
        verify_flops=2e7,
        target_passes=drafts.verifications + 1,
        drafts=drafts,
    )


def results() -> pa.Table:
    answers = [
        answer(0, "batch", CAREFUL),
        answer(1, "interactive", WILD),
        answer(2, "batch", DraftAccount()),
    ]
    batch = answers_to_batch(answers, part_schema(token_ids=False), 0.0, "fixed:4", "native")
    table = pa.Table.from_batches([batch]).drop_columns(["key"])
    rows = pa.array(range(3), pa.int64())
    return table.add_column(0, "row_index", rows).add_column(1, "id", pa.nulls(3, pa.string()))


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    pq.write_table(results(), tmp_path / "r")
    fault = "drafter 'head' failed once; the first time: propose: RuntimeError: boom"
    stats: list[dict[str, Any]] = [{"draft_fault": fault, "draft_faults": 1}, {"draft_fault": ""}]
    attempts = tuple(Attempt(start=0, seconds=6, engine_seconds=4, stats=each) for each in stats)
    config = JobConfig(input=("x",))
    manifest = Manifest(
        run_id="run",
        specbatch="0",
        epoch=0.0,
        config=config.model_dump(mode="json"),
        identity={},
        model={"name": "m"},
        input=[],
        versions={},
        hardware={},
        attempts=attempts,
    )
    return summarise(tmp_path / "r", manifest)


def test_rows_carry_their_account() -> None:
    row = results().to_pylist()[0]
    assert (row["drafted"], row["unselected"], row["selected"], row["pruned"]) == (30, 10, 20, 0)
    assert (row["verified"], row["accepted"], row["rejected"], row["trimmed"]) == (20, 11, 9, 1)
    assert row["output_tokens"] == row["accepted"] + row["verifications"] + 1 - row["trimmed"]
    assert row["accept_histogram"] == [1, 2, 1, 1, 1]
    assert (row["draft_flops"], row["rejected_flops"], row["draft_passes"]) == (3e6, 4e6, 20)


def test_totals_identities_and_shares(summary: Summary) -> None:
    drafts = summary["speculation"]
    assert drafts["drafted"] == drafts["unselected"] + drafts["selected"] == 40
    assert drafts["selected"] == drafts["pruned"] + drafts["verified"] == 30
    assert drafts["verified"] == drafts["accepted"] + drafts["rejected"] == 30
    assert drafts["accept_histogram"] == [3, 2, 1, 1, 1]
    assert drafts["accepted_by_depth"] == [5, 3, 2, 1]
    assert sum(drafts["accepted_by_depth"]) == drafts["accepted"] == 11
    assert drafts["accepted_per_pass"] == pytest.approx(11 / 8)
    assert drafts["tokens_per_pass"] == pytest.approx(1 + 11 / 8)
    assert drafts["acceptance"] == pytest.approx(11 / 30)
    assert drafts["rejected_draft_flops"] == pytest.approx(4e6 * 29 / 40)
    share = (9e6 + 4e6 * 29 / 40) / (3 * 2.1e7 + 4e6)
    assert drafts["rejected_flop_share"] == pytest.approx(share)
    assert summary["compute"]["rejected_flops"] == 9e6
    assert summary["energy"]["rejected_joules"] is None
    assert summary["energy"]["proxies"]["rejected_share_by_flops"] == pytest.approx(share)


def test_tiers_have_their_own_account(summary: Summary) -> None:
    tiers = summary["tiers"]
    assert tiers["interactive"]["speculation"]["accepted"] == 0
    assert tiers["interactive"]["speculation"]["tokens_per_pass"] == 1.0
    assert tiers["batch"]["speculation"]["drafted"] == 30
    for name in ("drafted", "accepted", "rejected", "verifications", "rejected_flops"):
        parts = [tier["speculation"][name] for tier in tiers.values()]
        assert sum(parts) == summary["speculation"][name]


def test_nothing_drafted_is_nothing_wasted() -> None:
    nothing = speculation(results().slice(2))
    assert (nothing["accepted_per_pass"], nothing["acceptance"], nothing["accepted_by_depth"]) == (
        None,
        None,
        [],
    )
    assert nothing["rejected_flop_share"] == 0.0
    assert speculation(results().slice(0, 0))["rejected_flop_share"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_says_what_came_of_it_and_names_a_failing_drafter(summary: Summary, width: int) -> None:
    stream = io.StringIO()
    print_summary(summary, Ending(Path("jobs.out"), 0, ""), stream, width)
    check(f"summary-speculation-{width}", stream.getvalue())
    assert "2.38 tokens per pass, 11 of 40 drafted tokens accepted" in stream.getvalue()
    assert "RuntimeError: boom" in " ".join(stream.getvalue().split())


def test_the_terminal_says_that_the_profile_does_not_fit(summary: Summary) -> None:
    summary["engine"]["profile_drift"] = "passes took 2 times"
    stream = io.StringIO()
    print_summary(summary, Ending(Path("jobs.out"), 0, ""), stream, 80)
    told = " ".join(stream.getvalue().split())
    assert "profile passes took 2 times as long as it says, which was allowed for; specbatch profile" in told
