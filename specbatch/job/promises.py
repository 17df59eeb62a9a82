"""Promises that count from the first start of a run, which may be longer ago than somebody thinks."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from specbatch.config import JobConfig
from specbatch.config.moments import Moment
from specbatch.job.host import Rows
from specbatch.progress import duration
from specbatch.table.reader import InputTable


def deadline_notice(config: JobConfig, epoch: float, now: float) -> str | None:
    """What to say of the deadline of the whole run; ``None`` without one.

    Args:
        config: The job.
        epoch: First start, Unix seconds: the deadline is the next one after it, however often one goes on.
        now: Unix seconds.
    """
    end = config.run_deadline(epoch)
    if config.deadline is None or end is None:
        return None
    moment = Moment.parse(config.deadline, config.tz).spelled(epoch)
    if end >= now:
        return f"the run is to be over at {moment}, in {duration(end - now)}"
    fate = "end expired (--late answer runs them)" if config.late == "drop" else "are answered late"
    return f"the run was to be over at {moment}, {duration(now - end)} ago: rows that are left {fate}"


def reminder(rows: int, started: datetime) -> str:
    """What to say when a finished run goes on with rows that have such promises.

    Args:
        rows: How many are left.
        started: First start of the run.
    """
    return (
        f"this goes on with a finished run, so for the {rows:,} rows left deadline_s, arrival_s and "
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
