"""Two runs side by side: a difference is called one where it is more than chance; other jobs are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from specbatch.report.runs.compare import Comparison, compare
from specbatch.report.runs.figures import report_of
from specbatch.report.runs.record import read_record
from specbatch.report.runs.trend import nights as in_order
from tests.cli.console import called
from tests.report.nights import NightEngine, job, run_night
from tests.report.sums_by_hand import quantile


def compared(first: Path, second: Path) -> Comparison:
    return compare(read_record(first), read_record(second))


def test_a_run_is_no_different_from_itself(nights: Path) -> None:
    found = compared(nights / "night-0", nights / "night-0")
    assert found.comparable
    assert found.unlike == []
    for tier in found.tiers.values():
        assert tier.paired
        for change in tier.changes:
            assert (change.difference, change.low, change.high, change.within_noise) == (0.0, 0.0, 0.0, True)


def test_the_same_rows_served_faster_are_faster_beyond_noise(nights: Path) -> None:
    found = compared(nights / "plain", nights / "night-0")
    assert found.comparable
    assert [each.what for each in found.unlike] == ["policy"]
    changes = {change.name: change for change in found.tiers["all"].changes}
    for name in ("queued s p50", "TTFT s p95", "total s p50"):
        change = changes[name]
        assert change.first is not None
        assert change.difference == pytest.approx(-0.2 * change.first), "1 / 0.8 of the speed"
        assert change.within_noise is False
    output = changes["output, tokens/s"]
    assert (output.difference, output.within_noise) == (0.0, True)


def test_numbers_are_those_of_the_tables(nights: Path) -> None:
    found = compared(nights / "plain", nights / "night-0")
    for side, name in (("first", "plain"), ("second", "night-0")):
        rows = pq.read_table(nights / name / "results.parquet").to_pylist()
        mine = [row for row in rows if row["tier"] == "standard"]
        changes = {change.name: getattr(change, side) for change in found.tiers["standard"].changes}
        values = sorted(row["e2e_s"] for row in mine if row["e2e_s"] is not None)
        met = [row["slo_met"] for row in mine]
        good = sum(row["output_tokens"] for row in mine if row["slo_met"])
        assert changes["total s p95"] == pytest.approx(quantile(values, 0.95), rel=1e-9)
        assert changes["SLO met, share of rows"] == pytest.approx(sum(met) / len(met), rel=1e-9)
        assert changes["goodput, tokens/s"] == pytest.approx(good / 60.0, rel=1e-9)
        cost = math.fsum(row["device_s"] or 0.0 for row in mine)
        written = sum(row["output_tokens"] for row in mine if row["e2e_s"] is not None)
        assert changes["device ms per output token"] == pytest.approx(1e3 * cost / written, rel=1e-9)


def test_equal_engines_on_other_rows_differ_within_noise(tmp_path: Path) -> None:
    """Of intervals of 95 %, few may miss 0 where nothing differs."""
    outside = total = 0
    for seed in range(2):
        folders = [tmp_path / f"{seed}-{side}" for side in "ab"]
        first, second = (
            run_night(job(folder, rows=45), NightEngine(seed=10 * seed + place))
            for place, folder in enumerate(folders)
        )
        found = compared(first, second)
        assert not found.comparable, "files of their own"
        assert not found.tiers["all"].paired
        changes = found.tiers["all"].changes
        outside += sum(change.within_noise is False for change in changes)
        total += len(changes)
    assert total > 20
    assert outside / total < 0.25


def test_another_input_and_model_are_told_apart_and_warned_of(nights: Path, tmp_path: Path) -> None:
    other = run_night(job(tmp_path, rows=30, seed=3), NightEngine(seed=1))
    content = json.loads((other / "run.json").read_text())
    content["model"]["digest"] = "another"
    (other / "run.json").write_text(json.dumps(content))
    found = compared(nights / "night-0", other)
    assert not found.comparable
    assert {each.what for each in found.unlike if each.matters} == {"input", "model", "seed"}
    done = called("report", "--compare", str(nights / "night-0"), str(other))
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    assert "WARNING not the same job (input, model, seed)" in shown
    assert "only 10, so the interval says little" in shown


def test_of_two_rows_no_difference_is_told_from_chance(tmp_path: Path) -> None:
    first, second = (
        run_night(job(tmp_path, rows=6, out=tmp_path / name), NightEngine(speed=speed))
        for name, speed in (("slow", 0.5), ("fast", 2.0))
    )
    found = compared(first, second)
    assert found.tiers["batch"].rows == (2, 2)
    assert all(change.within_noise is None and change.too_few for change in found.tiers["batch"].changes)
    changes = {change.name: change for change in found.tiers["all"].changes}
    assert changes["total s p50"].within_noise is False, "six rows, all of them four times as fast"
    assert (changes["goodput, tokens/s"].rows, changes["goodput, tokens/s"].within_noise) == ((4, 4), None)
    page = tmp_path / "page.html"
    done = called("report", "--compare", str(first), str(second), "--html", str(page))
    assert done.returncode == 0
    batch = done.stdout.partition("batch:")[2].partition("interactive:")[0].splitlines()
    assert [line.split()[-2:] for line in batch if line.startswith("total s")] == [["too", "few"]] * 2
    assert "batch       beyond noise: too few rows to tell" in done.stdout
    assert "too few: less than 6 rows have a part in it, too few to tell" in done.stdout
    tables = [line for line in done.stdout.splitlines() if "compared" not in line and "baseline" not in line]
    assert max(map(len, tables)) <= 80
    text = page.read_text("utf-8")
    assert "What less than 6 rows have a part in is not drawn" in text
    assert "change-batch" not in text


def test_tiers_of_one_run_only_are_named(nights: Path, tmp_path: Path) -> None:
    run_night(job(tmp_path, rows=2))
    found = compared(nights / "night-0", tmp_path / "night-0")
    assert found.only_in == ["batch"]
    assert set(found.tiers) == {"interactive", "standard", "all"}


def test_nights_are_in_the_order_they_began_and_say_what_changed(nights: Path) -> None:
    names = ("night-2", "plain", "night-1", "night-0")
    reports = [report_of(read_record(nights / name)) for name in names]
    found = in_order(reports)
    starts = [night.started for night in found]
    assert starts == sorted(starts, key=lambda start: start or 0.0)
    assert [Path(night.directory).name for night in found[2:]] == ["night-1", "night-2"]
    assert sum(night.changed == ["policy"] for night in found) in (1, 2)
    for night, report in zip(found, sorted(reports, key=lambda report: report.started or 0.0), strict=True):
        assert night.attainment == report.summary["slo"]["attainment"]
        assert night.failed == 5
        assert set(night.attainment_by_tier) == {"interactive", "standard"}
