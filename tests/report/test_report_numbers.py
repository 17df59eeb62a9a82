"""Every number of a report is that of a query over the files, and attributions sum to their totals."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.report.runs.course import spread
from specbatch.report.runs.promises import Limit, _in_words
from tests.cli.console import called
from tests.report.by_hand import ByHand, same
from tests.report.nights import NightEngine, job, meter, run_night
from tests.report.sums_by_hand import FATES

NAMES = ("night-0", "metered")
SAID = ("schema_version", "run_id", "specbatch", "model", "failures", "engine")
"""Of the summary: words, and what the run said of itself."""

WORDS = ("method", "scope", "reason", "attribution", "idle_treatment")
"""Of the energy."""

CONSTANT = {
    "directory",
    "state",
    "exit_code",
    "run_id",
    "started",
    "attempts",
    "policy",
    "source",
    "rows_total",
    "problems",
    "baseline",
    "check",
}


@pytest.fixture(scope="session")
def reports(nights: Path) -> dict[str, tuple[ByHand, dict[str, Any]]]:
    """What the command prints for programs, beside the files; once without and once with joules."""
    config = job(nights, out=nights / "metered")
    meter(run_night(config, NightEngine(seed=4, watts=21.5)), joules=900.0)
    found = {}
    for name in NAMES:
        done = called("report", str(nights / name), "--json")
        found[name] = (ByHand(nights / name), json.loads(done.stdout)["runs"][0])
    return found


Reports = dict[str, tuple[ByHand, dict[str, Any]]]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_that_of_a_query(reports: Reports, name: str) -> None:
    by_hand, report = reports[name]
    told = {key: value for key, value in report["summary"].items() if key not in SAID}
    told["energy"] = {key: value for key, value in told["energy"].items() if key not in WORDS}
    assert same(told, by_hand.summary()) == []
    words = ("definition", "limits")
    kept = {
        tier: {key: value for key, value in each.items() if key not in words}
        for tier, each in report["promises"].items()
    }
    assert same(kept, by_hand.promises()) == []
    assert same(report["drafts"], by_hand.drafts()) == []
    assert same(report["owners"], by_hand.owners()) == []
    assert same(report["memory"], by_hand.memory()) == []
    over_time = ("modes", "edges")
    chosen = {key: value for key, value in report["choices"].items() if key not in over_time}
    assert same(chosen, by_hand.choices()) == []
    checked = {
        "summary",
        "promises",
        "drafts",
        "owners",
        "memory",
        "choices",
        "course",
        "calibration",
        "preemptions",
        "lost_tokens",
    }
    assert set(report) == CONSTANT | checked


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_is_quoted_and_its_calibration_divided_by_the_candidates(
    reports: Reports, name: str
) -> None:
    by_hand, report = reports[name]
    stats = by_hand.stats
    quoted = report["summary"]["engine"]
    assert quoted == {key: stats[key] for key in quoted}
    assert {key for key in stats if key not in quoted} == {
        key for key in stats if key.startswith(("kv_", "entitled_", "achieved_"))
    } | {"draft_pages_peak", "peak_resident_bytes"}
    count = stats["calibration.candidates"]
    wanted = {
        "candidates": count,
        "accepted": stats["calibration.accepted_sum"] / count,
        "predicted": stats["calibration.calibrated_sum"] / count,
        "error": stats["calibration.ece_sum"] / count,
        "error_reported": stats["calibration.ece_reported_sum"] / count,
    }
    assert same(report["calibration"], wanted) == []
    preempted = {
        tier: sum(row["num_preemptions"] or 0 for row in mine) for tier, mine in by_hand.tiers().items()
    }
    assert report["preemptions"] == preempted


@pytest.mark.parametrize("name", NAMES)
def test_what_is_attributed_sums_to_the_whole(reports: Reports, name: str) -> None:
    _, report = reports[name]
    tiers = [each for tier, each in report["drafts"].items() if tier != "all"]
    whole = report["drafts"]["all"]
    assert whole["draft"]["tokens"] == sum(whole["fates"][fate]["tokens"] for fate in FATES)
    for unit in ("flops", "device_s", "joules"):
        if whole["draft"][unit] is None:
            assert (name, unit) == ("night-0", "joules")
            continue
        rejected = whole["fates"]["rejected"][unit]
        parts = math.fsum(each[unit] for each in whole["fates"].values())
        assert parts == pytest.approx(whole["wasted"][unit] + whole["fates"]["accepted"][unit], rel=1e-9)
        assert 0 < whole["draft"][unit] < parts, rejected
        for fate in [*whole["fates"], "draft", "wasted"]:
            mine = [(each["fates"].get(fate) or each.get(fate))[unit] for each in tiers]
            total = (whole["fates"].get(fate) or whole[fate])[unit]
            assert math.fsum(mine) == pytest.approx(total, rel=1e-9)
    for unit in ("rows", "output_tokens", "verified_tokens", "device_s"):
        owners = math.fsum(each["whole"][unit] for each in report["owners"])
        by_tier = math.fsum(use[unit] for each in report["owners"] for use in each["tiers"].values())
        assert owners == pytest.approx(by_tier, rel=1e-9)
    energy, time = report["summary"]["energy"], report["summary"]["time"]
    if energy["joules"] is not None:
        joules = math.fsum(each["whole"]["joules"] for each in report["owners"])
        assert joules + energy["idle_joules"] == pytest.approx(energy["joules"], rel=1e-9)
        assert whole["draft"]["joules"] == pytest.approx(energy["draft_joules"], rel=1e-9)
        in_vain = whole["wasted"]["joules"] + whole["fates"]["accepted"]["joules"] - energy["draft_joules"]
        assert in_vain == pytest.approx(energy["rejected_joules"], rel=1e-9)
    shared = math.fsum(each["whole"]["device_s"] for each in report["owners"])
    assert shared + time["idle_seconds"] == pytest.approx(time["engine_seconds"], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_spans_of_time_hold_every_token_and_operation(reports: Reports, name: str) -> None:
    by_hand, report = reports[name]
    course, rows = report["course"], [row for row in by_hand.rows if row["e2e_s"] is not None]
    for tier, values in course["tokens"].items():
        wanted = sum(row["output_tokens"] for row in rows if row["tier"] == tier)
        assert math.fsum(values) == pytest.approx(wanted, rel=1e-9)
    for kind, names in {
        "prefill": ["prefill_flops"],
        "draft": ["draft_flops"],
        "rejected": ["rejected_flops"],
    }.items():
        assert math.fsum(course["flops"][kind]) == pytest.approx(
            math.fsum(row[name] for row in rows for name in names), rel=1e-9
        )
    kept = math.fsum(row["verify_flops"] - row["rejected_flops"] for row in rows)
    assert math.fsum(course["flops"]["written"]) == pytest.approx(kept, rel=1e-9)
    # Rows by mode: each row is in one mode from its first token to its last, so lives add up.
    width = course["edges"][1] - course["edges"][0]
    lives = math.fsum(row["e2e_s"] - row["ttft_s"] for row in rows)
    held = width * math.fsum(value for values in report["choices"]["modes"].values() for value in values)
    assert held == pytest.approx(lives, rel=1e-6)


def test_one_span_by_hand(reports: Reports) -> None:
    by_hand, report = reports["night-0"]
    edges, epoch = report["course"]["edges"], by_hand.run["epoch"]
    begin, end = edges[10], edges[11]
    wanted = 0.0
    for row in by_hand.rows:
        if row["tier"] == "batch" and row["e2e_s"] is not None:
            arrival = row["arrival"].timestamp() - epoch
            first, last = arrival + row["ttft_s"], arrival + row["e2e_s"]
            inside = max(0.0, min(end, last) - max(begin, first))
            wanted += row["output_tokens"] * inside / (last - first)
    assert report["course"]["tokens"]["batch"][10] == pytest.approx(wanted, rel=1e-6)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(0, 1e6)), min_size=1, max_size=30))
def test_spreading_loses_nothing(spans: list[tuple[float, float, float]]) -> None:
    begin = np.array([min(a, b) for a, b, _ in spans])
    end = np.array([max(a, b) for a, b, _ in spans])
    amount = np.array([each for _, _, each in spans])
    sums = spread(np.linspace(0, 9, 8), begin, end, amount)
    assert sums.sum() == pytest.approx(amount.sum(), rel=1e-12, abs=1e-9)
    assert (sums >= 0).all()


def test_slo_definitions_are_those_of_the_rows(reports: Reports, nights: Path) -> None:
    _, report = reports["night-0"]
    table = pq.read_table(nights / "night-0" / "results.parquet").to_pylist()
    tight = [row for row in table if row["tier"] == "interactive"]
    assert {(row["ttft_slo_ms"], row["tpot_slo_ms"]) for row in tight} == {(1200.0, 40.0)}
    assert report["promises"]["interactive"]["definition"] == "TTFT <= 1.20 s, TPOT <= 40.0 ms"
    assert report["promises"]["standard"]["definition"] == "done in <= 5.00 s"
    assert report["promises"]["batch"]["definition"] == "nothing promised"


def test_promises_of_some_rows_only_say_how_many(nights: Path, tmp_path: Path) -> None:
    table = pq.read_table(nights / "night-0" / "results.parquet")
    place = table.column_names.index("tpot_slo_ms")
    limits = [20.0 if row % 9 == 0 else None for row in range(table.num_rows)]
    shutil.copytree(nights / "night-0", tmp_path / "night")
    changed = table.set_column(place, "tpot_slo_ms", pa.array(limits, pa.float64()))
    pq.write_table(changed, tmp_path / "night" / "results.parquet")
    content = json.loads(called("report", str(tmp_path / "night"), "--json").stdout)
    kept = content["runs"][0]["promises"]["interactive"]
    assert kept["definition"] == "TTFT <= 1.20 s, TPOT <= 20.0 ms (14 rows)"


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [
        (0.004, 0.004, "TTFT <= 4.00 ms"),
        (0.004, 0.05, "TTFT <= 4.00 to 50.0 ms"),
        (0.004, 60.0, "TTFT <= 4.00 ms to 60.0 s"),
        (0.1, 60.0, "TTFT <= 0.10 to 60.0 s"),
    ],
)
def test_short_promises_are_told_in_milliseconds(least: float, most: float, words: str) -> None:
    assert _in_words(Limit("ttft_s", least, most, most, "rows", 3), 3) == words


def test_energy_is_null_with_a_reason_and_never_zero(reports: Reports, nights: Path) -> None:
    _, report = reports["night-0"]
    energy = report["summary"]["energy"]
    assert energy["joules"] is None
    assert energy["reason"]
    numbers = [value for name, value in energy.items() if isinstance(value, int | float)]
    assert numbers == []
    joules = [each["joules"] for each in report["owners"][0]["tiers"].values()]
    joules += [fate["joules"] for fate in report["drafts"]["all"]["fates"].values()]
    assert set(joules) == {None}
    shown = called("report", str(nights / "night-0")).stdout
    assert re.search(r"^energy +not measured: \S", shown, re.MULTILINE)
    assert not re.search(r"\b0(\.0+)? (J|W)\b", shown)


def test_measured_energy_stands_beside_its_method_and_scope(reports: Reports, nights: Path) -> None:
    assert reports["metered"][1]["summary"]["energy"]["method"] == "rapl"
    shown = " ".join(called("report", str(nights / "metered"), COLUMNS="120").stdout.split())
    assert "energy 900 J (rapl: package-0 (all processes)), 15.0 W mean, 31.0 W peak" in shown
    assert called("report", str(nights / "metered"), "--html", str(nights / "m.html")).returncode == 0
    page = (nights / "m.html").read_text("utf-8")
    assert "Where the energy went" in page
    assert "rapl: package-0 (all processes)" in page
