"""Unfinished and damaged runs are reported as far as they go, and what is missing is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.job.run import run_job
from specbatch.report.runs.figures import RunReport, report_of
from specbatch.report.runs.record import read_record
from specbatch.report.runs.show import moment
from tests.cli.console import called
from tests.job.fake_engine import World
from tests.job.jobs import Crash, crash_at, run, save_job
from tests.report.by_hand import same
from tests.report.nights import NightEngine, job, run_night

Damage = Callable[[Path], None]


@pytest.fixture
def night(nights: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(nights / "night-0", tmp_path / "night")
    return tmp_path / "night"


def remove(*names: str) -> Damage:
    def damage(directory: Path) -> None:
        for name in names:
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def cut(name: str) -> Damage:
    """The second half is lost."""

    def damage(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def scramble(name: str) -> Damage:
    """The footer is fine, a page is not."""

    def damage(directory: Path) -> None:
        path = directory / name
        content = bytearray(path.read_bytes())
        content[200:260] = bytes(60)
        path.write_bytes(bytes(content))

    return damage


def replace(name: str, text: str) -> Damage:
    def damage(directory: Path) -> None:
        (directory / name).write_text(text)

    return damage


def both(first: Damage, second: Damage) -> Damage:
    def damage(directory: Path) -> None:
        first(directory)
        second(directory)

    return damage


def stranger(name: str) -> Damage:
    """Parquet, but not ours."""

    def damage(directory: Path) -> None:
        pq.write_table(pa.table({"x": [1, 2]}), directory / name)

    return damage


DAMAGES: dict[str, tuple[Damage, str, int]] = {
    "no results": (remove("results.parquet"), "results.parquet: missing", 120),
    "half of the results": (cut("results.parquet"), "results.parquet: damaged", 120),
    "a page of the results": (scramble("results.parquet"), "results.parquet: damaged", 120),
    "no manifest": (remove("run.json"), "run.json: missing", 120),
    "half of the manifest": (cut("run.json"), "run.json: not a manifest", 120),
    "a list for a manifest": (replace("run.json", "[]"), "run.json: not a manifest", 120),
    "no summary": (remove("summary.json"), "summary.json: missing", 120),
    "half of the summary": (cut("summary.json"), "summary.json: damaged", 120),
    "a list for a summary": (replace("summary.json", "[1]"), "summary.json: damaged", 120),
    "no decisions": (remove("decisions.parquet", "decisions"), "decisions.parquet: missing", 120),
    "half of the decisions": (cut("decisions.parquet"), "decisions.parquet: damaged", 120),
    "no results, no manifest": (remove("results.parquet", "run.json"), "run.json: missing", 120),
    "half of a part": (
        both(remove("results.parquet"), cut("parts/part-000001.parquet")),
        "parts/part-000001.parquet: damaged",
        90,
    ),
    "a stranger among the parts": (
        both(remove("results.parquet"), stranger("parts/part-000077.parquet")),
        "parts/part-000077.parquet: belongs to another run",
        120,
    ),
    "another table for results": (stranger("results.parquet"), "results.parquet: damaged", 120),
    "another table for decisions": (stranger("decisions.parquet"), "decisions.parquet: damaged", 120),
    "only results": (
        remove("run.json", "summary.json", "decisions.parquet", "decisions", "parts", ".lock"),
        "run.json: missing",
        120,
    ),
    "no rows at all": (remove("results.parquet", "parts"), "there are no rows to report on", 0),
    "nothing but a manifest": (
        remove("results.parquet", "parts", "summary.json", "decisions.parquet", "decisions"),
        "there are no rows to report on",
        0,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_reported_with_what_is_missing(night: Path, name: str) -> None:
    damage, problem, rows = DAMAGES[name]
    damage(night)
    report = report_of(read_record(night))
    assert any(problem in each for each in report.problems), report.problems
    assert report.summary["rows"]["total"] == rows
    page = night / "page.html"
    for extra in (("--html", str(page)), ("--json",), (str(night), "--compare")):
        done = called("report", str(night), *extra)
        assert done.returncode == 0, done.stderr
        assert problem in " ".join(done.stdout.split()) or "--compare" in extra
    assert problem in page.read_text()


def test_a_damaged_night_has_a_line_among_others(nights: Path, night: Path) -> None:
    remove("results.parquet", "parts", "run.json")(night)
    others = [str(nights / name) for name in ("night-1", "night-0")]
    done = called("report", *others, "night", "--html", "page.html", cwd=night.parent)
    assert done.returncode == 0
    assert "night: there are no rows to report on" in done.stdout
    assert "night: there are no rows to report on" in (night.parent / "page.html").read_text()


def whole(directory: Path) -> RunReport:
    return report_of(read_record(directory))


def test_without_a_manifest_rates_come_from_the_summary_and_are_not_called_checked(night: Path) -> None:
    before = whole(night)
    (night / "run.json").unlink()
    after = whole(night)
    assert after.summary["rates"] == before.summary["rates"]
    assert after.policy == "adaserve"
    assert after.promises == before.promises
    assert after.check.differences == []
    assert 0 < after.check.compared < before.check.compared
    assert "without run.json" in after.check.note


def test_parts_hold_the_rows_of_the_results(night: Path) -> None:
    before = whole(night)
    (night / "results.parquet").unlink()
    after = whole(night)
    assert after.source == "parts/"
    names = ("rows", "tokens", "slo", "latency", "speculation", "compute", "rates")
    found, wanted = ({name: dict(each.summary)[name] for name in names} for each in (after, before))
    assert same(found, wanted) == []
    assert after.drafts["all"] == before.drafts["all"]
    assert after.check.compared == 0


def test_of_two_answers_for_a_row_the_later_counts(night: Path) -> None:
    first = pq.read_table(night / "parts" / "part-000001.parquet")
    again = first.set_column(
        first.column_names.index("output_tokens"),
        "output_tokens",
        pa.array([1000] * first.num_rows, pa.int32()),
    )
    pq.write_table(
        again.replace_schema_metadata(first.schema.metadata), night / "parts" / "part-000099.parquet"
    )
    (night / "results.parquet").unlink()
    report = whole(night)
    assert report.summary["rows"]["total"] == 120
    assert report.summary["tokens"]["output"] > 1000 * first.num_rows


def test_a_run_that_stopped_half_way(tmp_path: Path) -> None:
    config = job(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_night(config, NightEngine(stop_after=70))
    report = whole(tmp_path / "night-0")
    assert (report.state, report.rows_total) == ("stopped", 120)
    assert report.summary["rows"]["total"] == 60, "two flushes of 30"
    assert report.choices is not None
    done = called("report", str(tmp_path / "night-0"))
    assert done.returncode == 0
    assert "60 of 120" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(("shard", "failed"), [(None, [1, 4]), ("2/2", [1])])
def test_rows_that_failed_are_named_before_the_run_is_finished(
    tmp_path: Path, shard: str | None, failed: list[int]
) -> None:
    columns: dict[str, object] = {"prompt": ["a", None, "b", "c", None, *"defg"]}
    config = save_job(tmp_path, columns, flush_rows=1, shard=shard)
    with pytest.raises(Crash):
        run(config, crash_at(3 if shard else 7))
    (failure,) = whole(tmp_path / "out").summary["failures"]
    assert [row["row_index"] for row in failure["first"]] == failed
    shown = called("report", str(tmp_path / "out")).stdout
    assert all(f"      row {row}: column `prompt` is null" in shown for row in failed)
    assert "a row: " not in shown


def test_a_killed_attempt_has_lost_what_it_did_not_commit(night: Path) -> None:
    content = json.loads((night / "run.json").read_text())
    content["attempts"][0].update(exit_code=None, end=None, computed_tokens=900, committed_tokens=300)
    (night / "run.json").write_text(json.dumps({**content, "finished": None}))
    report = whole(night)
    assert (report.state, report.lost_tokens) == ("killed", 600)
    shown = called("report", str(night)).stdout
    assert "lost        600 tokens of attempts that ended early" in shown


def test_results_of_another_version_lack_columns_and_are_reported(night: Path) -> None:
    table = pq.read_table(night / "results.parquet")
    absent = ["device_s", "draft_s", "rejected_s", "energy_j", "ttft_slo_ms"]
    pq.write_table(table.drop_columns(absent), night / "results.parquet")
    recorded: dict[str, Any] = json.loads((night / "summary.json").read_text())
    (night / "summary.json").write_text(json.dumps({**recorded, "schema_version": 3}))
    report = whole(night)
    assert any("has no column" in problem for problem in report.problems)
    assert report.drafts["all"].draft.device_s is None
    assert "schema version 3" in report.check.note


def test_what_the_summary_says_otherwise_is_told_with_both_values(night: Path) -> None:
    recorded: dict[str, Any] = json.loads((night / "summary.json").read_text())
    recorded["tiers"]["batch"]["output_tokens"] += 1
    recorded["slo"]["attainment"] = 0.99
    del recorded["tokens"]["prompt"]
    (night / "summary.json").write_text(json.dumps(recorded))
    found = {each.field: (each.recorded, each.recomputed) for each in whole(night).check.differences}
    truth = whole(night).summary
    assert found == {
        "tiers.batch.output_tokens": (
            truth["tiers"]["batch"]["output_tokens"] + 1,
            truth["tiers"]["batch"]["output_tokens"],
        ),
        "slo.attainment": (0.99, truth["slo"]["attainment"]),
        "tokens.prompt": ("(absent)", truth["tokens"]["prompt"]),
    }
    shown = " ".join(called("report", str(night)).stdout.split())
    assert f"slo.attainment: 0.99 recorded, {truth['slo']['attainment']} computed" in shown


def test_a_summary_written_by_a_run_is_what_the_report_computes(tmp_path: Path) -> None:
    """With the run's own times, not those that other tests give it."""
    run_job(job(tmp_path), surroundings=World(NightEngine()).surroundings())
    check = whole(tmp_path / "night-0").check
    assert check.differences == []
    assert check.compared > 250


def test_a_run_that_is_continued_is_not_compared_with_its_old_summary(night: Path) -> None:
    content = json.loads((night / "run.json").read_text())
    (night / "run.json").write_text(json.dumps({**content, "finished": None}))
    report = whole(night)
    assert report.source == "parts/"
    assert report.check.compared == 0


def test_a_moment_beyond_the_calendar_is_a_number() -> None:
    assert moment(1e300) == "1e+300 s after 1970"


@pytest.mark.parametrize(("file", "column"), [("results.parquet", "tier"), ("decisions.parquet", "time_s")])
def test_a_page_is_written_where_a_column_is_empty(night: Path, file: str, column: str) -> None:
    table = pq.read_table(night / file)
    place = table.schema.get_field_index(column)
    field = table.schema.field(place).with_nullable(True)
    pq.write_table(table.set_column(place, field, pa.nulls(len(table), field.type)), night / file)
    done = called("report", str(night), "--html", str(night / "page.html"))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
