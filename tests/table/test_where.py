"""``where``: three-valued logic as in SQL, and clear words when it cannot be applied."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.errors import ConfigError, InputError
from specbatch.table.where import Where

ROWS: list[dict[str, Any]] = [
    {"n": 0, "lang": "en", "score": 1.5, "good": True, "day": dt.datetime(2026, 7, 1), "odd name": 1},
    {"n": 1, "lang": "de", "score": 4.0, "good": False, "day": dt.datetime(2026, 7, 2), "odd name": 2},
    {"n": 2, "lang": None, "score": 5.0, "good": None, "day": None, "odd name": 3},
    {"n": 3, "lang": "en", "score": None, "good": True, "day": dt.datetime(2026, 7, 3), "odd name": 4},
    {"n": 4, "lang": "it's", "score": 3.0, "good": False, "day": dt.datetime(2026, 7, 4), "odd name": 5},
]
BATCH = pa.RecordBatch.from_pylist(ROWS)


def kept(text: str, batch: pa.RecordBatch = BATCH) -> list[int]:
    where = Where.parse(text)
    where.check(batch.schema, "t.parquet")
    numbers: list[int] = where.keep(batch, "t.parquet").column("n").to_pylist()
    return numbers


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("lang = 'en'", [0, 3]),
        ("lang == 'en' AND score > 1", [0]),
        ("lang = 'en' or score >= 4", [0, 1, 2, 3]),
        ("lang = 'en' or lang = 'de' and score > 100", [0, 3]),
        ("(lang = 'en' or lang = 'de') and score < 100", [0, 1]),
        ("not lang = 'en'", [1, 4]),
        ("lang <> 'en'", [1, 4]),
        ("not not (n != 2)", [0, 1, 3, 4]),
        ("lang is null", [2]),
        ("score IS NOT NULL and good", [0]),
        ("lang in ('de', 'it''s')", [1, 4]),
        ("n not in (0, 1, 2)", [3, 4]),
        ("lang like 'e%'", [0, 3]),
        ("lang not like 'e%'", [1, 4]),
        ('"odd name" >= 4', [3, 4]),
        ("`odd name` = 1", [0]),
        ("day >= '2026-07-02' and day < '2026-07-04'", [1, 3]),
        ("score > n", [0, 1, 2]),
        ("n > -1.5e0 and 3 > n", [0, 1, 2]),
        ("good = false", [1, 4]),
        ("true", [0, 1, 2, 3, 4]),
        ("1 = 2", []),
        ("n < 99999999999999999999 and n > -1", [0, 1, 2, 3, 4]),
    ],
)
def test_rows_for_which_the_whole_is_true_are_kept(text: str, rows: list[int]) -> None:
    assert kept(text) == rows


def test_dictionaries_are_text_and_zones_are_honoured() -> None:
    moment = pa.array([dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)] * 2, pa.timestamp("us", "Europe/Lisbon"))
    batch = pa.RecordBatch.from_pydict(
        {"n": [0, 1], "lang": pa.array(["en", "de"]).dictionary_encode(), "at": moment}
    )
    assert kept("lang = 'de'", batch) == [1]
    assert kept("at = '2026-07-01T13:00:00+01:00'", batch) == [0, 1]
    assert kept("at < '2026-07-01T12:00:00Z'", batch) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected a column or a value, found the end"),
        ("lang =", "expected a column or a value, found the end"),
        ("lang = 'en", "cannot read from here: 'en"),
        ("lang = 'en' score > 3", "expected `and`, `or` or the end, found `score > 3`"),
        ("(n = 1", "expected `)`, found the end"),
        ("n in 3", "expected `(`, found `3`"),
        ("n not 3", "expected `in` or `like`, found `3`"),
        ("n is 3", "expected `null`, found `3`"),
        ("n like 3", "expected a pattern in single quotes, found `3`"),
        ("n; drop", "cannot read from here: ; drop"),
        ("__import__('os').system('x')", "cannot read from here: .system('x')"),
        ("3abc = 1", "cannot read from here: 3abc = 1"),
        ("(" * 60 + "n = 1" + ")" * 60, "more than 50 levels"),
    ],
)
def test_what_is_no_expression_is_shown_where_it_goes_wrong(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Where.parse(text)
    assert what in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("size > 3", "t.parquet: no column `size` (in where: size > 3)"),
        ("lang > 3", "t.parquet: where cannot be applied"),
        ("score = 'high'", "t.parquet: where cannot be applied"),
        ("day = 'soon'", "t.parquet: where cannot be applied"),
        ("n like 'x'", "t.parquet: where cannot be applied"),
        ("n", "does not say true or false"),
        ("n and good", "t.parquet: where cannot be applied"),
    ],
)
def test_what_does_not_fit_the_table_is_an_input_error_that_names_the_file(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        kept(text)
    assert what in caught.value.what
    assert "\n" not in caught.value.what


@given(st.lists(st.none() | st.integers(-3, 3), max_size=8), st.integers(-3, 3), st.integers(-3, 3))
def test_logic_is_that_of_sql(values: list[int | None], low: int, high: int) -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(len(values))), "v": pa.array(values, pa.int64())})
    between = [row for row, value in enumerate(values) if value is not None and low < value <= high]
    assert kept(f"v > {low} and v <= {high}", batch) == between
    outside = [row for row, value in enumerate(values) if value is not None and not low < value <= high]
    assert kept(f"not (v > {low} and not v > {high})", batch) == outside
    unknown = [row for row, value in enumerate(values) if value is None or value == low]
    assert kept(f"v is null or v in ({low}, {low})", batch) == unknown
