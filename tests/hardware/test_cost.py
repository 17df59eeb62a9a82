"""Cost tables: between, behind and beside the measured points."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.hardware.points import PrefillPoint, VerifyPoint
from tests.hardware.costs import CONTEXTS, HERE, TOKENS, draft_s, pass_s, table

noise = st.lists(st.floats(0.3, 3.0), min_size=40, max_size=40)
count = st.integers(1, 300)


def noisy(factors: list[float]) -> CostTable:
    clean = table()
    points = zip(clean.verify, factors, strict=False)
    return replace(clean, verify=tuple(replace(point, seconds=f * point.seconds) for point, f in points))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_measured_passes_are_met(tokens: int, context: int) -> None:
    assert table().verify_s(tokens, context) == pytest.approx(pass_s(tokens, tokens, context))
    assert table().verify_s(tokens, context, 1) == pytest.approx(pass_s(tokens, 1, context))


@settings(deadline=None)
@given(count, st.integers(64, 4000), count)
def test_rows_with_trees_lie_between(tokens: int, context: int, rows: int) -> None:
    rows = min(rows, tokens)
    assert table().verify_s(tokens, context, rows) == pytest.approx(pass_s(tokens, rows, context), rel=1e-6)


@settings(deadline=None)
@given(noise, st.tuples(count, count), st.tuples(count, count), st.tuples(count, count))
def test_more_never_costs_less(
    factors: list[float], tokens: tuple[int, int], contexts: tuple[int, int], rows: tuple[int, int]
) -> None:
    found = noisy(factors)
    less = found.verify_s(min(tokens), 10 * min(contexts), min(rows))
    more = found.verify_s(max(tokens), 10 * max(contexts), max(rows))
    assert 0.0 < less <= more * (1 + 1e-9)


@settings(deadline=None)
@given(noise, st.integers(0, 100), st.integers(1, 2000), st.integers(1, 64))
def test_the_curve_is_the_single_times(factors: list[float], most: int, context: int, rows: int) -> None:
    found = noisy(factors)
    curve = found.verify_curve(most, context, rows)
    one_by_one = [found.verify_s(n, context, min(rows, n)) for n in range(most + 1)]
    assert curve.tolist() == pytest.approx(one_by_one, rel=1e-12)
    assert np.all(np.diff(curve) >= 0)


@settings(deadline=None)
@given(noise, st.lists(st.integers(0, 300), min_size=1), st.integers(1, 64))
def test_prompts_beside_are_the_single_times(factors: list[float], prompts: list[int], rows: int) -> None:
    found = noisy(factors)
    beside = found.beside_s(np.array(prompts))
    one_by_one = [found.step_s(rows, 64, rows, n) - found.verify_s(rows, 64, rows) for n in prompts]
    assert beside.tolist() == pytest.approx(one_by_one, rel=1e-9, abs=1e-12)


def test_nothing_costs_nothing() -> None:
    found = table()
    assert found.verify_s(0, 64) == found.prefill_s(0) == found.draft_s(0, 4) == 0.0
    assert found.draft_tree_s(0, 4, 3) == found.draft_tree_s(4, 4, 0) == 0.0


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 8), st.integers(1, 7))
def test_drafts_are_met(rows: int, width: int, levels: int) -> None:
    found = table().draft_tree_s(rows, width, levels)
    assert found == pytest.approx(draft_s(rows, width, levels), rel=1e-6)
    assert table().draft_s(rows, width) == pytest.approx(draft_s(rows, width, 2) - draft_s(rows, width, 1))


def test_prefill_beside_verification_reads_the_weights_once() -> None:
    found = table()
    alone = found.verify_s(8, 64, 4) + found.prefill_s(128)
    together = found.step_s(8, 64, 4, 128)
    assert together == pytest.approx(alone - found.prefill_s(1))
    assert found.step_s(8, 64, 4, 0) == found.verify_s(8, 64, 4)
    assert found.step_s(0, 64, 0, 128) == found.prefill_s(128)


def test_without_a_drafter_nobody_is_told_that_drafts_are_free() -> None:
    with pytest.raises(ValueError, match="without a drafter"):
        table(draft=False).draft_s(1, 1)


def test_a_table_survives_the_file() -> None:
    found = table()
    found.verify_s(3, 100)
    found.draft_s(3, 3)
    again = CostTable.from_json(found.to_json())
    assert again == found
    assert again.verify_s(3, 100) == found.verify_s(3, 100)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("seconds", -1.0, "a measured time is not between nothing and an hour"),
        ("seconds", 1e308, "a measured time is not between nothing and an hour"),
        ("tokens", 10**30, "a measured size is not"),
        ("tokens", 0, "a measured size is not"),
        ("context", 1 << 40, "a measured size is not"),
        ("tokens", "many", "verify.0.tokens: Input should be a valid integer"),
    ],
)
def test_a_damaged_file_is_refused(field: str, value: object, reason: str) -> None:
    content = json.loads(table().to_json())
    content["verify"][0][field] = value
    with pytest.raises(ValueError, match=reason):
        CostTable.from_json(json.dumps(content).encode())
    with pytest.raises(ValueError, match="JSON"):
        CostTable.from_json(b"{")


def test_too_little_is_no_table() -> None:
    with pytest.raises(ValueError, match="at least two numbers of tokens"):
        replace(table(), verify=(VerifyPoint(1, 1, 64, 0.1, 1), VerifyPoint(1, 1, 512, 0.1, 1)))
    with pytest.raises(ValueError, match="prefill"):
        replace(table(), prefill=())
    with pytest.raises(ValueError, match="between nothing and an hour"):
        replace(table(), prefill=(PrefillPoint(8, float("inf"), 1),))


def test_passes_that_the_table_was_not_made_from_test_it() -> None:
    error = table().check_error
    assert error is not None
    assert error.median == pytest.approx(1 - 1 / 1.1)
    assert replace(table(), checks=()).check_error is None


def test_a_curve_for_selection_takes_no_time() -> None:
    found = table()
    found.verify_curve(512, 300, 48)
    took = []
    for _ in range(20):
        start = time.process_time()
        found.verify_curve(512, 300, 48)
        took.append(time.process_time() - start)
    assert min(took) < 1e-3


def test_a_fingerprint_is_told_apart_by_what_matters() -> None:
    assert HERE.key == replace(HERE, model="renamed", specbatch="9.9").key
    assert HERE.differences(replace(HERE, model="renamed", specbatch="9.9")) == []
    others = [replace(HERE, threads=4), replace(HERE, model_digest="c" * 64), replace(HERE, drafter="none")]
    assert len({HERE.key, *(other.key for other in others)}) == 4
    assert [HERE.differences(other) for other in others] == [
        ["threads 4, here 2"],
        ["another model"],
        ["drafter none, here suffix+head"],
    ]


def test_another_version_is_stale() -> None:
    assert HERE.stale(HERE) == ""
    assert (
        HERE.stale(replace(HERE, specbatch="0.0.9")) == "it was measured with specbatch 0.0.9, this is 0.1.0"
    )
    older: Fingerprint = replace(HERE, format=0)
    assert HERE.stale(older) == "it was measured with profile format 0, this is 2"
