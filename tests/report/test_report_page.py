"""The page: one file that asks nobody for anything, readable by everybody, at any width."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.cli.console import called
from tests.report.browser import browsing, found

VIEWS = {
    "run": ("night-0",),
    "compare": ("--compare", "plain", "night-0"),
    "trend": ("night-0", "night-1", "night-2"),
}


@pytest.fixture(scope="module")
def pages(nights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for view, args in VIEWS.items():
        done = called("report", *args, "--html", str(folder / f"{view}.html"), cwd=nights)
        assert done.returncode == 0
        assert done.stderr == f"page written to {folder / f'{view}.html'}\n"
    return {view: folder / f"{view}.html" for view in VIEWS}


@pytest.mark.parametrize("view", VIEWS)
def test_a_page_names_no_other_file(pages: dict[str, Path], view: str) -> None:
    text = pages[view].read_text("utf-8")
    assert not re.search(r"https?:|//|url\(|@import|<script|<img|<iframe", text.replace("//www.w3.org", ""))
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,"}
    assert "prefers-color-scheme:dark" in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("view", VIEWS)
def test_drawings_say_what_they_show_and_have_tables_beside_them(pages: dict[str, Path], view: str) -> None:
    text = pages[view].read_text("utf-8")
    drawings = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(drawings) >= 4
    names: set[str | None] = set()
    for drawn in drawings:
        root = ET.fromstring(drawn)
        title, told = root.find("title"), root.find("desc")
        assert title is not None
        assert told is not None
        assert title.text
        assert told.text, title.text
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {told.get('id')}"
        names.add(title.get("id"))
        numbers = re.findall(r'(?:x|y|x1|x2|y1|y2|width|height|cx|cy)="(-?[\d.]+|nan|inf)"', drawn)
        assert all(abs(float(number)) < 5000 for number in numbers)
    assert len(names) == len(drawings), "names are unique"
    assert text.count("<caption>") == text.count("<table>") > 0


def test_the_page_of_a_run_has_every_plot(pages: dict[str, Path]) -> None:
    text = pages["run"].read_text("utf-8")
    titles = [unescape(title) for title in re.findall(r"<title id=[^>]*>([^<]*)</title>", text)]
    assert titles == [
        "Rows that kept their promises",
        "Goodput, tokens/s",
        "Time to first token",
        "Time per output token",
        "Arrival to last token",
        "Waiting for a place",
        "Where drafted tokens went",
        "What written tokens came of",
        "Output tokens/s",
        "Computation, GFLOP/s",
        "Rows by how they are decoded",
        "Computed tokens by tier",
        "Where the engine's seconds went",
    ]
    assert text.count("SLO interactive") == 2
    assert "SLO standard" in text


@pytest.mark.parametrize("heading", ["tier", "owner"])
def test_what_budgets_count_is_not_called_as_the_column_of_drafted_tokens(
    pages: dict[str, Path], nights: Path, heading: str
) -> None:
    text = pages["run"].read_text("utf-8") + called("report", str(nights / "night-0"), COLUMNS="80").stdout
    assert "verified<" not in text
    assert re.search(rf"^{heading} .* computed ", text, re.MULTILINE)
    words = "drafted tokens that the model verified, and one more for each verification"
    assert " ".join(text.split()).count(words) == 3


def test_dots_of_the_trend_are_named_by_run(pages: dict[str, Path]) -> None:
    text = pages["trend"].read_text("utf-8")
    for name in ("night-0", "night-1", "night-2"):
        assert re.search(rf"<circle [^>]*><title>{name}, 2026-09-2\d [\d:]+, goodput: [\d.]+</title>", text)


def test_what_a_run_brings_along_is_text_on_the_page(nights: Path, tmp_path: Path) -> None:
    evil = tmp_path / "<b onload=x>&amp;"
    shutil.copytree(nights / "night-0", evil)
    assert called("report", str(evil), "--html", str(tmp_path / "p.html")).returncode == 0
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "<b onload" not in text
    assert "&lt;b onload=x&gt;&amp;amp;" in text


def test_names_on_the_page_and_in_the_terminal_are_what_they_are(nights: Path, tmp_path: Path) -> None:
    tier = "[red]a[/] :boom: <b>&c</b>"
    runs = [tmp_path / "one", tmp_path / "two"]
    for night, run in enumerate(runs):
        shutil.copytree(nights / f"night-{night}", run)
        (run / "run.json").unlink()
        table = pq.read_table(run / "results.parquet")
        place = table.schema.get_field_index("tier")
        names = pc.replace_substring(table.column("tier"), "standard", tier)
        table = table.set_column(place, table.schema.field(place), names)
        pq.write_table(table, run / "results.parquet")
    for shown in (runs[:1], runs, [*runs, "--compare"]):
        page = tmp_path / "page.html"
        done = called("report", *map(str, shown), "--html", str(page), COLUMNS="200")
        assert done.returncode == 0, done.stderr
        assert "<b>&c" not in page.read_text("utf-8")
        assert "&lt;b&gt;&amp;c&lt;/b&gt;" in page.read_text("utf-8")
        assert tier in done.stdout or (len(shown) > 1 and "--compare" not in shown)


@pytest.mark.skipif(found() is None, reason="no Chromium here")
def test_a_browser_has_nothing_to_complain_about(pages: dict[str, Path], tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as browser:
        for page in pages.values():
            for width, scheme in ((1280, "light"), (390, "dark")):
                browser.open(page, width, scheme)
                assert browser.value("document.documentElement.scrollWidth") == width, "no scrolling sideways"
                assert browser.value("document.querySelectorAll('svg').length") >= 4
                dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
                assert dark == (scheme == "dark")
                small = (
                    "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width / 360)"
                )
                assert min(browser.value(small)) > 0.9, "letters keep their size"
        assert browser.complaints == []
        assert set(browser.requests) == {page.as_uri() for page in pages.values()}
