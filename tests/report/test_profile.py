"""A profile as people and programs see it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.hardware.cost import CostTable
from specbatch.report.profile import bar, print_profile, profile_as_dict
from specbatch.report.profile_plot import svg_of
from tests.golden_files import check
from tests.hardware.costs import table

PATH = Path("cache/specbatch/profiles/0123456789abcdef.json")
SVG = "{http://www.w3.org/2000/svg}"


def gappy() -> CostTable:
    """Like a full profile on a machine whose memory ends: the longest rows were not measured."""
    found = table()
    kept = tuple(point for point in found.verify if point.rows * point.context < 10_000)
    return replace(found, verify=kept)


def printed(found: CostTable, width: int) -> str:
    stream = io.StringIO()
    print_profile(found, PATH, stream, width)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_profile_fits_the_terminal(width: int) -> None:
    text = printed(gappy(), width)
    check(f"profile-{width}", text)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_what_was_not_measured_is_marked() -> None:
    assert "~" not in printed(table(), 80)
    assert printed(gappy(), 80).count("~") == 2


def test_without_a_drafter_there_are_no_drafts() -> None:
    assert "each level more" not in printed(table(draft=False), 80)


def test_a_terminal_without_block_characters_gets_others() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    print_profile(table(), PATH, stream, 80)
    stream.seek(0)
    assert "###" in stream.read()


@settings(deadline=None)
@given(st.floats(0, 90), st.floats(0, 90), st.booleans())
def test_a_bar_is_as_long_as_what_it_shows(one: float, other: float, blocks: bool) -> None:
    solid, whole = sorted((one, other))
    drawn = bar(solid, whole, blocks=blocks)
    assert abs(len(drawn) - whole) <= 1.0
    full = drawn.count("█" if blocks else "#")
    assert abs(full - solid) <= 1.0


def test_programs_get_all_points_and_how_far_the_table_is_off() -> None:
    content = json.loads(json.dumps(profile_as_dict(table(), PATH)))
    assert content["path"] == str(PATH)
    assert len(content["verify"]) == len(table().verify)
    assert content["fingerprint"]["processor"] == "Zen 3"
    assert content["check_error"]["median"] == pytest.approx(1 - 1 / 1.1)
    assert profile_as_dict(replace(table(), checks=()), PATH)["check_error"] is None


@pytest.mark.parametrize("draft", [True, False])
def test_the_picture_has_a_line_for_each_curve_and_a_dot_for_each_point(draft: bool) -> None:
    found = table(draft=draft)
    found = replace(found, fingerprint=replace(found.fingerprint, model="<a & b>"))
    root = ElementTree.fromstring(svg_of(found))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    lines, dots = (list(root.iter(f"{SVG}{kind}")) for kind in ("polyline", "circle"))
    assert len(lines) == 4 + 3 * draft
    assert len(dots) == 4 * 7 + 3 * 4 * draft
    for dot in dots:
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height
    assert any("<a & b>" in (text.text or "") for text in root.iter(f"{SVG}text"))
