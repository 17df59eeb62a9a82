"""Summary numbers are those of the results, and fit a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.errors import ExitCode
from specbatch.job.outcome import judge
from specbatch.report.failures import failures
from specbatch.report.summary import Summary, quantiles, read_summary, summarise
from specbatch.report.terminal import Ending, print_summary
from specbatch.table.manifest import Attempt, Manifest
from specbatch.table.schema import output_schema
from tests.golden_files import check

ROWS = [
    # tier, status, slo_met, deadline_met, output tokens, queued, ttft, tpot, e2e
    ("interactive", "ok", True, None, 10, 0.1, 0.25, 20.0, 0.5),
    ("interactive", "truncated", False, None, 30, 0.3, 1.25, 40.0, 2.5),
    ("batch", "ok", True, True, 100, 5.0, 6.0, 123.4, 17.0),
    ("batch", "ok", None, None, 50, 5.0, 7.0, 22.0, 8.0),
    ("batch", "expired", False, False, 0, None, None, None, None),
]
NAMES = (
    "tier",
    "status",
    "slo_met",
    "deadline_met",
    "output_tokens",
    "queued_s",
    "ttft_s",
    "tpot_ms",
    "e2e_s",
)


MESSAGE = "row 4: the deadline passed 312 s before the row could begin; start earlier, or use late = 'answer'"


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    columns: dict[str, object] = {name: [row[place] for row in ROWS] for place, name in enumerate(NAMES)}
    columns["row_index"], columns["id"] = list(range(5)), [None, "a", "b", "c", "order-48213"]
    columns["device_s"] = [0.5, 1.5, 3.0, 1.0, None]
    columns["error_code"] = [None, None, None, None, "deadline_passed"]
    columns["error_message"] = [None, None, None, None, MESSAGE]
    schema = output_schema(token_ids=False)
    filled = {
        field.name: pa.array(
            columns.get(field.name, [0 if pa.types.is_integer(field.type) else None] * 5), field.type
        )
        for field in schema
    }
    pq.write_table(
        pa.table(filled, schema=pa.schema([field.with_nullable(True) for field in schema])), tmp_path / "r"
    )
    attempts = (
        Attempt(
            start=0, seconds=6, engine_seconds=4, attributed_s=3.5, stats={"steps": 3, "kv_pages_peak": 9}
        ),
        Attempt(
            start=9, seconds=14, engine_seconds=6, attributed_s=4.0, stats={"steps": 4, "kv_pages_peak": 5}
        ),
    )
    config = JobConfig(input=("x",))
    manifest = Manifest.create(config, {}, {"name": "m"}, [], 0.0).model_copy(update={"attempts": attempts})
    return summarise(tmp_path / "r", manifest)


def test_totals_rates_and_attainment(summary: Summary) -> None:
    assert summary["rows"]["total"] == 5
    assert summary["rows"]["by_status"] == {
        "ok": 3,
        "truncated": 1,
        "rejected": 0,
        "error": 0,
        "expired": 1,
        "cancelled": 0,
    }
    assert summary["tokens"]["output"] == 190
    assert summary["slo"] == {
        "rows_with_slo": 4,
        "rows_attained": 2,
        "attainment": 0.5,
        "rows_with_deadline": 2,
        "deadlines_met": 1,
    }
    assert summary["rates"] == {
        "output_tokens_per_s": 19.0,
        "goodput_tokens_per_s": 11.0,
        "without_slo_tokens_per_s": 5.0,
        "goodput_tokens_per_device_hour": 110 * 3600 / 20,
    }
    assert summary["tiers"]["interactive"]["slo"]["attainment"] == 0.5
    assert summary["tiers"]["batch"]["latency"]["queued_s"]["p50"] == 5.0
    assert summary["time"] == {
        "attempts": 2,
        "engine_seconds": 10,
        "device_seconds": 20,
        "attributed_seconds": 6.0,
        "idle_seconds": 4.0,
        "lost_seconds": 1.5,
    }
    assert summary["engine"] == {"steps": 7}
    assert summary["memory"] == {"kv_pages_peak": 9}
    assert summary["energy"]["joules"] is None
    assert json.loads(json.dumps(summary)) == summary


def test_verdicts(summary: Summary) -> None:
    def verdict(**settings: object) -> tuple[ExitCode, str]:
        return judge(summary, JobConfig.model_validate({"input": ("x",), **settings}))

    assert verdict() == (ExitCode.ROW_FAILURES, "1 of 5 rows failed (max_failures = 0)")
    assert verdict(max_failures=1) == (ExitCode.OK, "")
    assert verdict(max_failures="20%")[0] == ExitCode.OK
    assert verdict(max_failures=1, fail_on="truncated")[0] == ExitCode.ROW_FAILURES
    assert verdict(max_failures=1, min_attainment=0.5)[0] == ExitCode.OK
    code, reason = verdict(max_failures=1, min_attainment=0.51)
    assert (code, reason) == (ExitCode.ATTAINMENT, "50.0% of the SLOs were attained (min_attainment = 51.0%)")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_are_ordered_and_inside_the_data(values: list[float]) -> None:
    points = [point for point in quantiles(values).values() if point is not None]
    assert points == sorted(points)
    assert min(values) <= points[0] <= points[-1] <= max(values) * (1 + 1e-12)
    assert points[0] == pytest.approx(float(np.median(values)))


def test_quantiles_of_nothing_are_null() -> None:
    assert quantiles([]) == {"p50": None, "p95": None, "p99": None}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("name", "code", "reason"), [("failed", 1, "1 of 5 rows failed (max_failures = 0)"), ("tolerated", 0, "")]
)
def test_the_summary_fits_the_terminal(
    summary: Summary, width: int, name: str, code: int, reason: str
) -> None:
    stream = io.StringIO()
    print_summary(summary, Ending(Path("jobs.out"), code, reason), stream, width)
    check(f"summary-{name}-{width}", stream.getvalue())
    assert max(map(len, stream.getvalue().splitlines())) <= width
    assert " \n" not in stream.getvalue()


def test_a_job_without_rows_has_a_summary(summary: Summary) -> None:
    empty: Summary = {**summary, "tiers": {}, "failures": []}
    empty["rows"] = {"total": 0, "by_status": {}}
    stream = io.StringIO()
    print_summary(empty, Ending(Path("jobs.out"), 0, ""), stream, 80)
    assert "exit code 0: there were no rows" in stream.getvalue()


def test_failures_are_counted_by_reason_with_the_first_rows(tmp_path: Path) -> None:
    codes = ["null_prompt" if row % 2 else None for row in range(20)] + ["nan_logits"]
    table = pa.table(
        {
            "row_index": range(21),
            "id": ["x"] * 21,
            "status": ["rejected" if code else "ok" for code in codes[:20]] + ["error"],
            "error_code": codes,
            "error_message": [f"row {row}: bad" for row in range(21)],
            "output_tokens": [0] * 21,
        }
    )
    pq.write_table(table, tmp_path / "r", row_group_size=4)
    first, second = failures(tmp_path / "r")
    assert (first["status"], first["code"], first["rows"]) == ("rejected", "null_prompt", 10)
    assert [row["row_index"] for row in first["first"]] == [1, 3, 5]
    assert (second["code"], second["rows"]) == ("nan_logits", 1)


def test_truncated_rows_are_listed_where_they_count_as_failed(tmp_path: Path, summary: Summary) -> None:
    (expired,) = summary["failures"]
    cut, also = failures(tmp_path / "r", fail_on=["truncated"])
    assert (cut["status"], cut["code"], cut["rows"]) == ("truncated", None, 1)
    assert cut["first"] == [{"row_index": 1, "id": "a", "message": "stopped at max_tokens = 30"}]
    assert also == expired
    config = JobConfig(input=("x",), fail_on=("truncated",))
    manifest = Manifest.create(config, {}, {}, [], 0.0)
    assert summarise(tmp_path / "r", manifest)["failures"] == [cut, also]
    code, reason = judge(summary, config)
    assert reason == "2 of 5 rows failed or were truncated (max_failures = 0)"
    stream = io.StringIO()
    listed: Summary = {**summary, "failures": [cut, also]}
    print_summary(listed, Ending(Path("jobs.out"), code, reason), stream, 80)
    assert (
        "failed      2 rows, by reason:\n  1 row truncated\n      row 1 (id a): stopped at"
        in stream.getvalue()
    )


def test_a_run_that_decoded_nothing_has_no_throughput(summary: Summary) -> None:
    rates = {**summary["rates"], "output_tokens_per_s": 0.0, "goodput_tokens_per_s": None}
    idle = cast("Summary", {**summary, "rates": rates})
    stream = io.StringIO()
    print_summary(idle, Ending(Path("jobs.out"), 0, ""), stream, 80)
    lines = stream.getvalue().splitlines()
    assert [line.split() for line in lines if line.startswith(("throughput", "goodput"))] == [
        ["throughput", "-"],
        ["goodput", "-"],
    ]


@pytest.mark.parametrize("rate", [0.0, None], ids=["decoded", "nothing decoded"])
def test_goodput_of_promises_that_were_all_missed_is_nought(summary: Summary, rate: float | None) -> None:
    missed = {
        **summary,
        "rates": {**summary["rates"], "goodput_tokens_per_s": rate},
        "slo": {**summary["slo"], "rows_attained": 0, "attainment": 0.0},
    }
    stream = io.StringIO()
    print_summary(cast("Summary", missed), Ending(Path("jobs.out"), 0, ""), stream, 80)
    assert "goodput     0 tokens/s of rows that kept them" in stream.getvalue()


def test_a_summary_of_another_version_is_computed_again(tmp_path: Path, summary: Summary) -> None:
    path = tmp_path / "summary.json"
    assert read_summary(path) is None
    path.write_text(json.dumps(summary))
    assert read_summary(path) == summary
    older = {key: value for key, value in summary.items() if key != "failures"}
    for text in (json.dumps(older), "[]", "{", ""):
        path.write_text(text)
        assert read_summary(path) is None
