"""Workloads: what may be written, what it comes to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.bench.cases import Case, Plain, spread
from specbatch.bench.workload import Mix, Workload, read_workload
from specbatch.config import JobConfig
from specbatch.errors import ConfigError
from specbatch.settings import load_config
from specbatch.slo import Slo
from tests.bench.bench_rig import cases

PLAIN = Plain(
    tpot_s=0.04, ttft_s=0.5, e2e_s=3.0, rows_per_s=2.0, alone_tpot_s=0.01, alone_ttft_s=0.1, alone_e2e_s=0.8
)
SHIPPED = sorted((Path(__file__).resolve().parents[2] / "jobs" / "workloads").glob("*.toml"))


def only(workload: dict[str, object]) -> Case:
    found = cases(workload, max_rows_in_flight=4)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("written", "slo"),
    [
        ({"tpot": "25ms"}, Slo(tpot_ms=25.0)),
        ({"tpot": "0.7x"}, Slo(tpot_ms=28.0)),
        ({"tpot": "0.8x alone"}, Slo(tpot_ms=8.0)),
        ({"ttft": "2x"}, Slo(ttft_ms=1000.0)),
        ({"ttft": "3x alone"}, Slo(ttft_ms=300.0)),
        ({"deadline": "1.5x"}, Slo(deadline=4.5)),
        ({"deadline": "2s", "tpot": "1 s"}, Slo(deadline=2.0, tpot_ms=1000.0)),
        ({"deadline": "2s", "after": "1s"}, Slo(deadline=3.0)),
        ({}, Slo()),
    ],
)
def test_promises_are_times_or_factors_of_what_plain_decoding_takes(
    written: dict[str, object], slo: Slo
) -> None:
    case = only({"rows": 4, "tiers": {"tight": {"rows": 1.0, **written}}})
    for row in case.resolved(PLAIN):
        assert row.slo.tpot_ms == pytest.approx(slo.tpot_ms)
        assert row.slo.ttft_ms == pytest.approx(slo.ttft_ms)
        assert row.slo.deadline == pytest.approx(slo.deadline)
    assert bool(case.relative) == any("x" in str(value) for value in written.values())


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 60))
def test_every_row_gets_a_tier_and_every_tier_its_share(parts: list[int], total: int) -> None:
    mixes = {f"t{i}": Mix(rows=part / sum(parts)) for i, part in enumerate(parts)}
    tiers = spread(mixes, total)
    assert len(tiers) == total
    for i, part in enumerate(parts):
        assert abs(tiers.count(f"t{i}") - total * part / sum(parts)) <= 1.0


def test_tiers_are_spread_evenly() -> None:
    assert spread({"a": Mix(rows=2), "b": Mix(rows=4)}, 6) == ["b", "a", "b", "b", "a", "b"]


def test_arrivals_come_at_the_rate_asked_for_and_the_same_way_every_time() -> None:
    case = only({"rows": 400, "arrivals": {"rate": "2x"}})
    rows = case.resolved(PLAIN)
    assert rows[0].arrival == 0.0
    assert [row.arrival for row in rows] == sorted(row.arrival for row in rows)
    assert 400 / rows[-1].arrival == pytest.approx(2 * PLAIN.rows_per_s, rel=0.2)
    assert case.resolved(PLAIN) == rows


def test_cases_differ_in_what_they_say_and_share_the_rest() -> None:
    tiers = {"tight": {"rows": 0.5, "tpot": "1x"}, "loose": {"rows": 0.5}}
    other = {"tight": {"rows": 1, "tpot": "1x alone"}, "loose": {"rows": 7}}
    few, many, named = cases(
        {
            "rows": 8,
            "tiers": tiers,
            "cases": [
                {"rows_in_flight": 2},
                {"rows_in_flight": 64},
                {"name": "one", "rows_in_flight": 8, "tiers": other},
            ],
        },
        max_rows_in_flight=16,
    )
    assert [len(case.rows) for case in (few, many, named)] == [8, 64, 8]
    assert [case.job.max_rows_in_flight for case in (few, many, named)] == [2, 64, 8]
    assert [case.name for case in (few, many, named)] == ["2 rows in flight", "64 rows in flight", "one"]
    assert few.relative == many.relative == {"batch"}
    assert named.relative == {"alone"}
    assert len({row.key for row in many.rows}) == 64, "prompts that come round again are rows of their own"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tiers.tight = { rows = 0.5, tpot = 0.7 }", "workload.tiers.tight.tpot: expected a time"),
        ('tiers.tight = { rows = 0.5, tpot = "fast" }', "expected a time such as"),
        ('tiers.tight = { rows = 0.5, tpot = "0x" }', "expected a time such as"),
        ("tiers.tight = { rows = 1.5 }", "at most 1.0, or a whole number"),
        ("tiers = { a = { rows = 0.7 }, b = { rows = 0.7 } }", "add up to 1.4"),
        ('arrivals = { rate = "fast" }', "a factor such as"),
        ("arrivals = { rate = 0.0 }", "rate must be positive"),
        ("row = 3", "workload.row: extra inputs"),
        ('prompts = "nowhere.toml"', "no prompts"),
        ("rows = ", "a workload is a readable TOML file"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(f"[workload]\n{text}\n")
    with pytest.raises(ConfigError) as found:
        read_workload(path)
    assert reason in f"{found.value.what} {found.value.hint}"
    assert str(tmp_path) in found.value.what


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ({"tiers": {"swift": {"rows": 1.0}}}, "'swift' is not one of"),
        ({"rows": 16, "tiers": {"tight": {"rows": 3}, "loose": {"rows": 4}}}, "16 rows in all, but by tier"),
    ],
)
def test_rows_that_do_not_fit_the_job_are_refused(workload: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        cases(workload, max_rows_in_flight=4)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_workloads_have_distinct_prompts_for_all_their_rows(path: Path) -> None:
    workload = read_workload(path)
    config = load_config({"input": ("memory",)}, job_file=path, environ={})
    assert isinstance(config, JobConfig)
    most = max(spec.total(0) for spec in workload.specs(config.max_rows_in_flight))
    assert len(set(workload.prompts)) >= most
    for spec in workload.specs(config.max_rows_in_flight):
        assert len(spread(spec.tiers, spec.total(0))) == spec.total(0)
        assert set(spec.tiers) <= set(config.tiers)


def test_there_are_shipped_workloads() -> None:
    assert {"mixed.toml", "few_tight.toml", "no_deadlines.toml"} <= {path.name for path in SHIPPED}


def test_a_mere_job_file_is_a_workload_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('input = "jobs.parquet"\n')
    assert read_workload(tmp_path / "job.toml") == Workload()
