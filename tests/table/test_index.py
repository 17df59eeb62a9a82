"""Files as one table, rows in any order, an index that says what the rows say."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.config import JobConfig, Tier
from specbatch.errors import InputError
from specbatch.table.fetch import RowFetcher
from specbatch.table.index import base_keys, schedule, schedule_reference
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.source import open_sources
from specbatch.table.spool import Spool

EPOCH = 1_000_000.0
UTC = dt.UTC


def save(path: Path, table: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(table), path, **options)
    return str(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all" * 10])
def test_what_is_not_parquet_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet: not a readable Parquet file"):
        InputTable.open(JobConfig(input=(str(tmp_path / "x.parquet"),)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this system's folders")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(InputError, match="neither a file nor a directory"):
        open_sources([str(tmp_path / "pipe.parquet")])


def test_a_damaged_page_is_found_before_anything_runs(tmp_path: Path) -> None:
    path = Path(save(tmp_path / "x.parquet", {"prompt": [f"{i} text" for i in range(5000)]}))
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    job = JobConfig(input=(str(path),))
    with pytest.raises(InputError, match=r"x\.parquet"):
        InputTable.open(job).index(RowParser.of(job, EPOCH))


def test_files_globs_and_directories_are_one_table_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for number in range(3):
        save(tmp_path / "d" / f"{number}.parquet", {"prompt": [f"{number}a", f"{number}b"], "extra": [1, 2]})
    (tmp_path / "d" / "_SUCCESS").write_bytes(b"")
    for inputs in ((str(tmp_path / "d"),), (str(tmp_path / "d" / "*.parquet"),)):
        assert prompts(tmp_path, JobConfig(input=inputs)) == ["0a", "0b", "1a", "1b", "2a", "2b"]
        assert prompts(tmp_path, JobConfig(input=inputs, limit=3)) == ["0a", "0b", "1a"]
    with pytest.raises(InputError, match="no file matches"):
        InputTable.open(JobConfig(input=(str(tmp_path / "*.nothing"),)))
    save(tmp_path / "d" / "3.parquet", {"prompt": ["x"], "extra": ["text"]})
    with pytest.raises(InputError, match=r"3\.parquet: column `extra` is string, but int64"):
        InputTable.open(JobConfig(input=(str(tmp_path / "d"),)))


def prompts(tmp_path: Path, job: JobConfig) -> list[object]:
    parser = RowParser.of(job, EPOCH)
    with Spool(tmp_path) as spool:
        table = InputTable.open(job)
        fetcher = RowFetcher(table.index(parser, spool), parser, spool)
        return [fetcher.fetch(row).content for row in range(table.num_rows)]


def test_rows_are_fetched_in_any_order_from_a_spool_on_disk(tmp_path: Path) -> None:
    path = save(tmp_path / "x.parquet", {"prompt": [f"prompt {i}" for i in range(1000)]}, row_group_size=300)
    job = JobConfig(input=(path,))
    parser = RowParser.of(job, EPOCH)
    with Spool(tmp_path, in_memory_bytes=100) as spool:
        fetcher = RowFetcher(InputTable.open(job).index(parser, spool), parser, spool)
        for row in np.random.default_rng(0).permutation(1000):
            assert fetcher.fetch(int(row)).content == f"prompt {row}"
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


TIERS = {"gold": Tier(priority=1, deadline_s=100, ttft_slo_ms=10), "lead": Tier(priority=2, tpot_slo_ms=7)}
NUMBERS = st.none() | st.floats(0.125, 1e6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.sampled_from(["a", "b"]),
            "deadline": st.none()
            | st.datetimes(dt.datetime(1980, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(UTC)),
            "deadline_s": st.none() | st.floats(-1e6, 1e6),
            "tier": st.sampled_from([None, "gold", "lead", "batch"]),
            "owner": st.sampled_from([None, b"anybody", b"lab", b"shop"]),
            "arrival_s": NUMBERS,
            "tpot_slo_ms": NUMBERS,
            "ttft_slo_ms": NUMBERS,
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(
    ROWS, st.sets(st.sampled_from(["deadline", "deadline_s", "tier", "owner", "arrival_s", "tpot_slo_ms"]))
)
def test_the_index_says_what_the_rows_say(rows: list[dict[str, object]], absent: set[str]) -> None:
    owners = {"lab": {"tiers": ["batch"]}, "shop": {"tiers": [], "quota": 5}}
    job = JobConfig.model_validate({"input": ("x",), "tiers": TIERS, "owners": owners})
    parser = RowParser.of(job, EPOCH)
    columns = {
        name: pa.array([row[name] for row in rows], TYPES[name]) for name in TYPES if name not in absent
    }
    batch = pa.RecordBatch.from_pydict(columns)
    if "deadline" in columns:
        seconds = [None if row["deadline"] is None else row["deadline"].timestamp() for row in rows]  # type: ignore[attr-defined]
        batch = batch.set_column(
            batch.schema.get_field_index("deadline"), "deadline", pa.array(seconds, pa.float64())
        )
    fast, slow = schedule(batch, parser), schedule_reference(batch, parser)
    for name in ("arrival", "deadline", "tpot_ms", "ttft_ms", "tier", "asked"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name), name)


TYPES = {
    "prompt": pa.large_binary(),
    "deadline": pa.timestamp("us", "UTC"),
    "deadline_s": pa.float64(),
    "tier": pa.large_binary(),
    "owner": pa.large_binary(),
    "arrival_s": pa.float64(),
    "tpot_slo_ms": pa.float64(),
    "ttft_slo_ms": pa.float64(),
}


def keys_of(table: dict[str, object], **config: object) -> list[bytes]:
    parser = RowParser.of(JobConfig.model_validate({"input": ("x",), **config}), EPOCH)
    return list(base_keys(pa.RecordBatch.from_pydict(table), parser))


def test_a_key_depends_on_prompt_and_resolved_parameters_only() -> None:
    (plain,) = keys_of({"prompt": pa.array([b"x"])})
    same = keys_of(
        {"prompt": pa.array([b"x"] * 2), "max_tokens": [256, None], "tier": pa.array([b"a", b"b"])}
    )
    assert same == [plain, plain]
    others = [
        *keys_of({"prompt": pa.array([b"y"])}),
        *keys_of({"prompt": pa.array([b"x"]), "seed": [0]}),
        *keys_of({"prompt": pa.array([b"x"])}, max_tokens=255),
        *keys_of({"prompt": pa.array([b"x"]), "max_tokens": [0]}),
        *keys_of({"prompt": pa.array([b"x"]), "max_tokens": [-1]}),
        *keys_of({"messages": [[{"role": "user", "content": "x"}]]}),
    ]
    assert len({plain, *others}) == 7


def test_the_index_holds_at_most_64_bytes_per_row(tmp_path: Path) -> None:
    path = save(tmp_path / "x.parquet", {"prompt": ["a"] * 100, "id": [f"{row}" for row in range(100)]})
    job = JobConfig(input=(path,))
    index = InputTable.open(job).index(RowParser.of(job, EPOCH))
    arrays = [getattr(index, name) for name in index.__slots__ if name != "files"]
    assert [len(array) for array in arrays] == [100] * len(arrays)
    assert sum(array.itemsize for array in arrays) <= 64
