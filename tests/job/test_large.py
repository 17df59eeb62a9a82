"""A large table begins to run within seconds and does not fill the memory."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig

from .fake_engine import FakeEngine, World
from .jobs import Crash, run

ROWS = 200_000
LETTERS = 1000
SECONDS = 10.0
INDEX_BYTES = 64 * ROWS
# The spool in memory, a batch in a few forms, Arrow's pools. The text alone is 200 MB.
WORKING_BYTES = 128 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 1,000 letters, all different; the last row has the earliest deadline."""
    path = tmp_path_factory.mktemp("large") / "in.parquet"
    with pq.ParquetWriter(path, pa.schema([("prompt", pa.string()), ("deadline_s", pa.float64())])) as writer:
        for first in range(0, ROWS, 20_000):
            numbers = pa.array(range(first, first + 20_000))
            prompts = pc.binary_join_element_wise(
                numbers.cast(pa.string()), "lorem ipsum " * (LETTERS // 12), ": "
            )
            deadlines = pa.array([7200.0] * 20_000).cast(pa.float64())
            if first + 20_000 == ROWS:
                deadlines = pa.concat_arrays([deadlines[:-1], pa.array([3600.0])])
            writer.write_table(pa.table({"prompt": prompts, "deadline_s": deadlines}))
    return path


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_large_table_begins_soon_in_little_memory_and_its_last_row_runs_first(
    source: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, float, int]] = []

    def before_row(row: int) -> None:
        # Processor time: the machine may have other things to do.
        seen.append((row, time.process_time() - started, resident_bytes() - before))
        raise Crash

    before, started = resident_bytes(), time.process_time()
    with pytest.raises(Crash):
        run(JobConfig(input=(str(source),), out=tmp_path / "out"), World(FakeEngine(before_row=before_row)))
    ((row, seconds, grown),) = seen
    assert row == ROWS - 1
    assert seconds < SECONDS
    assert grown < INDEX_BYTES + WORKING_BYTES
