"""The sample files are what ``make.py`` writes, and hold what their README promises."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SAMPLE_DATA = Path(__file__).resolve().parent.parent / "sample_data"
NAMES = ("jobs.parquet", "awkward.parquet")


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample_data")
    subprocess.run([sys.executable, str(SAMPLE_DATA / "make.py"), str(folder)], check=True)
    return folder


def rows_of(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_make_reproduces_the_committed_file(rebuilt: Path, name: str) -> None:
    committed, fresh = SAMPLE_DATA / name, rebuilt / name
    if pq.read_metadata(committed).created_by == pq.read_metadata(fresh).created_by:
        assert committed.read_bytes() == fresh.read_bytes()
    # Another pyarrow release may lay the same values out differently; the values are ours to keep.
    ours, theirs = pq.read_table(committed), pq.read_table(fresh)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert repr(ours.to_pylist()) == repr(theirs.to_pylist())  # repr, because NaN differs from itself


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_have_several_row_groups(name: str) -> None:
    path = SAMPLE_DATA / name
    assert path.stat().st_size < 64 * 1024
    assert pq.read_metadata(path).num_row_groups > 1


@pytest.mark.parametrize("name", NAMES)
def test_no_column_has_the_null_type(name: str) -> None:
    assert not [field.name for field in pq.read_schema(SAMPLE_DATA / name) if pa.types.is_null(field.type)]


def test_every_job_row_fills_exactly_one_of_prompt_and_messages() -> None:
    rows = rows_of(SAMPLE_DATA / "jobs.parquet")
    assert all((row["prompt"] is None) != (row["messages"] is None) for row in rows)
    assert {row["prompt"] is None for row in rows} == {True, False}


def test_job_rows_cover_what_the_release_reads() -> None:
    rows = rows_of(SAMPLE_DATA / "jobs.parquet")
    assert len(rows) == 60
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["tier"] for row in rows} == {"interactive", "standard", "batch"}
    lengths = [row["max_tokens"] for row in rows]
    assert all(isinstance(length, int) and 1 <= length <= 64 for length in lengths)
    optional = (
        "deadline_s",
        "tpot_slo_ms",
        "ttft_slo_ms",
        "arrival_s",
        "temperature",
        "top_p",
        "seed",
        "stop",
    )
    for column in optional:
        filled = sum(row[column] is not None for row in rows)
        assert 0 < filled < len(rows), column


def test_some_job_prompts_are_long() -> None:
    words = [len(str(row["prompt"]).split()) for row in rows_of(SAMPLE_DATA / "jobs.parquet")]
    assert sum(count > 250 for count in words) >= 4
    assert sum(count < 30 for count in words) >= 20


def test_awkward_rows_say_what_to_expect() -> None:
    rows = rows_of(SAMPLE_DATA / "awkward.parquet")
    expectations = Counter(row["expect"] for row in rows)
    assert None not in expectations
    assert expectations["answered"] >= 20
    assert len(expectations) >= 8
    assert all(row["note"] for row in rows)


def test_awkward_rows_repeat_ids_and_prompts() -> None:
    rows = rows_of(SAMPLE_DATA / "awkward.parquet")
    twins = [row for row in rows if row["id"] == "twin"]
    assert len(twins) == 3
    assert Counter(row["prompt"] for row in twins).most_common(1)[0][1] == 2
