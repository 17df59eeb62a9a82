"""Where the rows of a workload come from: its own prompts, or the table of its job."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbatch.bench.workload import Workload
from specbatch.config import JobConfig
from specbatch.errors import InputError, RowFault
from specbatch.rows import Prompt, RawPrompt
from specbatch.table.fetch import RowFetcher
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool
from specbatch.text.encoder import PromptEncoder

Found = RawPrompt | RowFault
"""A row, or why it cannot be answered."""


def read_rows(workload: Workload, job: JobConfig) -> list[Found]:
    """The rows there are; no model is needed for this.

    Args:
        workload: Its own prompts come before the job's table.
        job: Input and defaults.

    Raises:
        InputError: The table cannot be read.
    """
    return list(_own(workload, job) if workload.prompts else _of_table(job))


def encode_rows(rows: Sequence[Found], encoder: PromptEncoder) -> tuple[list[Prompt], list[str]]:
    """The rows, tokenised.

    Args:
        rows: Of :func:`read_rows`.
        encoder: Of the model.

    Returns:
        The rows that can be answered, and why others cannot.

    Raises:
        InputError: No row can be answered.
    """
    prompts, faults = [], []
    for number, row in enumerate(rows):  # as `run` and `validate` number them
        try:
            if isinstance(row, RowFault):
                raise row
            prompts.append(encoder.encode(row))
        except RowFault as fault:
            faults.append(f"row {number}: {fault.message}")
    if not prompts:
        raise InputError(f"no row can be answered; {faults[0] if faults else 'there are none'}")
    return prompts, faults


def _own(workload: Workload, job: JobConfig) -> Iterator[RawPrompt]:
    for i, text in enumerate(workload.prompts):
        yield RawPrompt(i, f"{i:032x}", None, job.default_tier, text, job.sampling)


def _of_table(job: JobConfig) -> Iterator[Found]:
    """Rows of the job's input as ``specbatch run`` would read them now."""
    table = InputTable.open(job)
    parser = RowParser.of(job, time.time())
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        index = table.index(parser, spool)
        fetcher = RowFetcher(index, parser, spool)
        for row in range(len(index)):
            try:
                yield fetcher.fetch(row)
            except RowFault as fault:
                yield fault
