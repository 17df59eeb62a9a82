"""``specbatch report`` as people read it, at 80 and 120 columns; and what it does with odd arguments."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest

from specbatch.report.runs.figures import report_of
from specbatch.report.runs.names import shortened, split_shared
from specbatch.report.runs.record import read_record
from specbatch.report.runs.show import print_report
from tests.cli.console import called
from tests.golden_files import check

VIEWS = {
    "run": ("night-0",),
    "compare": ("--compare", "plain", "night-0"),
    "trend": ("night-2", "night-0", "night-1"),
}


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("view", VIEWS)
def test_reports_fit_the_terminal(nights: Path, view: str, width: int) -> None:
    done = called("report", *VIEWS[view], cwd=nights, COLUMNS=str(width), TZ="UTC")
    assert (done.returncode, done.stderr) == (0, "")
    check(f"report-{view}-{width}", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "\x1b" not in done.stdout
    assert " \n" not in done.stdout


@pytest.mark.usefixtures("in_utc")
def test_nights_are_named_in_80_columns_without_what_all_names_share(nights: Path) -> None:
    beside = called("report", "night-0", "night-1", cwd=nights, COLUMNS="80", TZ="UTC")
    assert beside.stdout.split("\n")[0].strip() == "Nights of 2026"
    done = called("report", str(nights / "night-0"), str(nights / "night-1"), COLUMNS="80", TZ="UTC")
    assert "".join(done.stdout.split()).startswith(f"Nightsof2026in{nights}")
    lines = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("night-")]
    assert lines == [["night-0", "09-21"], ["night-1", "09-22"]]


def test_long_names_lose_their_middle_and_are_told_apart() -> None:
    assert split_shared(["out/a/2026-11-29", "out/b/2026-11-30"]) == ("out", ["a/2026-11-29", "b/2026-11-30"])
    assert split_shared(["x.out", "/srv/y.out"]) == ("", ["x.out", "/srv/y.out"])
    assert split_shared([".", "n/1"]) == ("", [".", "n/1"])
    names = [f"reviews-of-november-2026-11-{day}" for day in (29, 30)]
    assert shortened(names, 13) == ["rev…026-11-29", "rev…026-11-30"]
    assert shortened(["short", *names], 40) == ["short", *names]
    assert shortened(["夜の仕事の夜の仕事"], 9) == ["夜の…仕事"], "wide letters take two columns"
    alike = ["aaaaaaaaa-1-zzzzzzzzz", "aaaaaaaaa-2-zzzzzzzzz"]
    assert shortened(alike, 10) == alike, "a name of two runs would be worse than a long one"


def test_a_stream_without_block_characters_gets_others(nights: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    print_report(report_of(read_record(nights / "night-0")), stream, 80)
    assert re.search(r"^drafted +\.+:+x+#+$", raw.getvalue().decode(), re.MULTILINE)


@pytest.mark.parametrize("view", VIEWS)
def test_json_is_one_object_of_all_runs(nights: Path, view: str) -> None:
    done = called("report", *VIEWS[view], "--json", cwd=nights)
    assert done.returncode == 0
    content = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert content["schema_version"] == 1
    assert content["kind"] == {"run": "run", "compare": "comparison", "trend": "trend"}[view]
    named = [name for name in VIEWS[view] if not name.startswith("--")]
    assert [run["directory"] for run in content["runs"]] == named
    if view == "trend":
        assert [night["name"] for night in content["nights"]] == sorted(named)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("none.out",), "no such directory"),
        ((".",), "is not a run directory"),
        (("--compare", "night-0"), "--compare takes two run directories, not 1"),
        (("night-0", "--html", "no/page.html"), "there is no folder no"),
        (("night-0", "--html", "night-1"), "is a folder"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_reported_is_said_before_anything_is_printed(
    nights: Path, args: tuple[str, ...], what: str
) -> None:
    done = called("report", *args, cwd=nights)
    assert (done.returncode, done.stdout) == (2, "")
    assert what in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_page_that_the_disk_refuses_ends_with_4(nights: Path) -> None:
    target = nights / ("x" * 254)
    done = called("report", "night-0", "--html", str(target), cwd=nights)
    assert done.returncode == 4
    assert "cannot be written" in done.stderr


def test_a_page_does_not_take_the_place_of_a_device_a_pipe_or_a_link(nights: Path, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link.html"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "page.html")
    done = called("report", "night-0", "--html", str(pipe), cwd=nights)
    assert (done.returncode, pipe.is_fifo()) == (4, True)
    assert "it is a device or a pipe" in done.stderr
    assert called("report", "night-0", "--html", str(link), cwd=nights).returncode == 0
    assert link.is_symlink()
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!")
