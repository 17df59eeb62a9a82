"""Shards: every row in exactly one, an equal mix of urgency in each, and the same ones everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.config.places import Shard
from specbatch.table.manifest import ShardRecord
from specbatch.table.parse import RowParser
from specbatch.table.stripes import Stripes


def stripes(columns: dict[str, Any], epoch: float, cut: int) -> Stripes:
    job = JobConfig.model_validate(
        {
            "input": ("x",),
            "deadline": "06:00 UTC",
            "tiers": {"batch": {"priority": 20, "deadline_s": 600}},
        }
    )
    found = Stripes(RowParser.of(job, epoch))
    batch = pa.RecordBatch.from_pydict(columns)
    for part in (batch.slice(0, cut), batch.slice(cut)):
        if part.num_rows:
            found.append(part)
    return found


numbers = st.none() | st.floats(0, 1e6, allow_nan=False)
rows = st.lists(
    st.tuples(
        numbers, st.none() | st.floats(1.7e9, 1.9e9), st.sampled_from([b"batch", b"interactive", None])
    ),
    max_size=40,
)


@given(rows, st.integers(1, 9), st.floats(0, 2e9), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_every_row_is_in_exactly_one_shard_whenever_it_starts_and_however_the_table_is_cut(
    table: list[tuple[Any, Any, Any]], count: int, epoch: float, cut: int
) -> None:
    relative, wall, tier = zip(*table, strict=True) if table else ((), (), ())
    columns = {
        "prompt": pa.array([b"x"] * len(table), pa.large_binary()),
        "deadline_s": pa.array(relative, pa.float64()),
        "deadline": pa.array(wall, pa.float64()),
        "tier": pa.array(tier, pa.large_binary()),
    }
    now, later = stripes(columns, epoch, cut), stripes(columns, epoch + 86400.0 * 7, 0)
    shards = [now.rows(Shard(number, count)) for number in range(1, count + 1)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(table)))
    for number, shard in enumerate(shards, 1):
        assert shard.tolist() == sorted(shard.tolist()), "in input order"
        assert shard.tolist() == later.rows(Shard(number, count)).tolist()
        record = ShardRecord(number=number, count=count, rows_total=len(table), keys="")
        assert record.rows == len(shard)
    # Equal mix: of the k most urgent rows, each shard has its part, give or take one.
    order = np.lexsort((np.arange(len(table)), np.concatenate(now._due) if now._due else np.zeros(0)))
    distinct = len({*np.concatenate(now._due).tolist()}) == len(table) if now._due else False
    for first in range(1, len(table) + 1) if distinct else ():
        urgent = set(order[:first].tolist())
        counts = [len(urgent & set(shard.tolist())) for shard in shards]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected i/n"):
        Shard.of(text)
    assert str(Shard.of(" 2 / 3 ")) == "2/3"
