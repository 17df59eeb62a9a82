"""Promises that count from the first start of a run, which may be longer ago than somebody thinks."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from specbatch.config import JobConfig
from specbatch.job.host import Rows
from specbatch.table.reader import InputTable


def reminder(rows: int, started: datetime) -> str:
    """What to say when a finished run goes on with rows that have such promises.

    Args:
        rows: How many are left.
        started: First start of the run.
    """
    return (
        f"warning: this goes on with a finished run, so for the {rows:,} rows left deadline_s, arrival_s and "
        f"times to the first token count from its first start, {started:%Y-%m-%d %H:%M:%S %Z}; "
        "give a new night's job a directory of its own (--out with the date in it), or use --fresh"
    )


def count_from_first_start(table: InputTable, config: JobConfig, rows: Rows) -> bool:
    """Whether any row that is left has a relative deadline or arrival, or a promised first token.

    A table with both kinds of deadlines is taken to use the relative one.

    Args:
        table: The input.
        config: The job.
        rows: Of the run.
    """
    index, left = rows.index, rows.left
    columns = {name for layout in table.layouts for name in layout.known}
    tiers = [config.tiers[rows.tiers[code]] for code in np.unique(index.tier[left])]
    relative = "deadline_s" in columns or any(tier.deadline_s is not None for tier in tiers)
    dated = relative and bool(np.isfinite(index.deadline[left]).any())
    return dated or bool((index.arrival[left] > 0).any()) or not bool(np.isnan(index.ttft_ms[left]).all())
