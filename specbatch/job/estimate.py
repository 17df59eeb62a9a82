"""What a speed would mean for a job: how long it takes, and which deadlines it misses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.models.resolve import bytes_on_disk
from specbatch.table.index import RowIndex

_START_S = 2.0
_LOADED_BYTES_PER_S = 200e6


@dataclass(frozen=True, slots=True)
class Speed:
    """What is taken for granted of the machine.

    Attributes:
        tokens_per_s: Output tokens per second, all rows together.
        loading_s: From the start of a run until its model is loaded; ``None``: by the model's size.
    """

    tokens_per_s: float
    loading_s: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a speed would mean, if every row ran to its last token: an upper bound.

    Attributes:
        tokens_per_s: As given.
        loading_s: From the start until the model is loaded; no row can end before.
        seconds: From the start to the end of all output.
        missed_deadlines: Not kept even in deadline order.
    """

    tokens_per_s: float
    loading_s: float
    seconds: float
    missed_deadlines: int

    @classmethod
    def of(cls, speed: Speed, model: str, index: RowIndex, max_tokens: NDArray[np.int64]) -> Estimate:
        """Of rows that are answered in deadline order, each to its last token.

        Args:
            speed: Of the machine.
            model: What the job calls its model.
            index: Of the job.
            max_tokens: Output tokens per row at most, ``[N]``; 0 for rows that get no answer.

        Raises:
            ModelError: There is no such model, or its files are not complete.
        """
        loading = loading_seconds(model) if speed.loading_s is None else speed.loading_s
        missed = missed_deadlines(index, max_tokens, speed.tokens_per_s, loading)
        seconds = loading + float(max_tokens.sum()) / speed.tokens_per_s
        return cls(speed.tokens_per_s, loading, seconds, missed)


def loading_seconds(model: str) -> float:
    """About how long a run takes until its model is loaded: two seconds, and one for every 200 MB.

    Neither fetching a model nor measuring the machine in the first run with it is in it.

    Raises:
        ModelError: There is no such model, or its files are not complete.
    """
    return _START_S + bytes_on_disk(model) / _LOADED_BYTES_PER_S


def late_rows(index: RowIndex, now: float) -> NDArray[np.int64]:
    """Rows whose deadline is past before they can begin, in input order.

    Args:
        index: Of the job.
        now: Seconds on the run clock.
    """
    return np.flatnonzero(index.deadline <= np.maximum(index.arrival, now)).astype(np.int64)


def missed_deadlines(
    index: RowIndex, max_tokens: NDArray[np.int64], tokens_per_s: float, loading_s: float
) -> int:
    """Deadlines that are not kept when rows are answered in deadline order, each to its last token.

    Args:
        index: Of the job.
        max_tokens: Output tokens per row at most, ``[N]``; rows with 0 get no answer and are not counted.
        tokens_per_s: Output tokens per second of the machine, all rows together.
        loading_s: From the start of the run until the first row can begin.

    Returns:
        Rows that are late before they can begin are not among them: they wait until the others are done.
    """
    waits = np.isfinite(index.deadline) & (max_tokens > 0)
    waits[late_rows(index, 0.0)] = False
    rows = np.flatnonzero(waits)
    rows = rows[np.argsort(index.deadline[rows], kind="stable")]
    ends = loading_s + np.cumsum(max_tokens[rows]) / tokens_per_s
    return int(np.count_nonzero(ends > index.deadline[rows]))
