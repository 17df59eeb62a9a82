"""Whether a job would run, and what would become of its rows; nothing is run or loaded for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.config import JobConfig
from specbatch.config.places import Shard
from specbatch.errors import ExitCode, RowFault
from specbatch.job.estimate import Estimate, Speed, late_rows
from specbatch.job.lookover import EXAMPLES, Fault, Lookover, Repeats, TextCheck
from specbatch.job.nights import run_directory
from specbatch.job.reach import PerToken, per_token
from specbatch.job.state import check_place
from specbatch.job.surroundings import open_encoder
from specbatch.models.config import ModelConfig
from specbatch.models.resolve import find_side_files
from specbatch.table.ids import duplicate_id
from specbatch.table.index import NO_TIER, RowIndex
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.rundir import RunDir
from specbatch.table.stripes import Stripes


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Tokens of the prompts in the sample, chat template included."""

    sampled_rows: int
    mean: float
    p50: float
    p95: float
    largest: int


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Promised times; seconds after a start now.

    Attributes:
        rows: With a deadline.
        past: Of these, late before they can begin.
        earliest_s: The first that is not past.
        latest_s: The last.
    """

    rows: int
    past: int
    earliest_s: float | None
    latest_s: float | None


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Promised times to the first token, which the time to load the model counts into.

    Attributes:
        rows: With such a promise.
        tightest_ms: The shortest, milliseconds.
    """

    rows: int
    tightest_ms: float | None


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found: of all rows, or of those of a shard.

    Attributes:
        rows: That were looked at.
        shard: Which part of the job they are, ``1/3``; ``None`` for the whole job.
        job_rows: Rows of the whole job.
        columns: Columns with a meaning, under our names.
        carried: Columns that pass through.
        tiers: Rows per tier; those that name none of the job's are in no tier.
        rows_with_slo: Rows with any promise.
        late: What becomes of rows that are late: ``answer`` or ``drop``.
        tokens: ``None`` when nothing was tokenised.
        tokenised_rows: How many rows were tokenised; the others are short enough for certain.
        tokenizer_missing: Why nothing was tokenised; empty when it was.
        max_output_tokens: Of all rows that would be answered, at most.
        refused_rows: Rows that would end without an answer.
    """

    files: tuple[str, ...]
    run_directory: str
    rows: int
    shard: str | None
    job_rows: int
    columns: tuple[str, ...]
    carried: tuple[str, ...]
    tiers: dict[str, int]
    rows_with_slo: int
    late: str
    deadlines: Deadlines
    first_tokens: FirstTokens
    per_token: PerToken
    estimate: Estimate | None
    tokens: TokenStats | None
    tokenised_rows: int
    tokenizer_missing: str
    max_output_tokens: int
    repeated_prompts: Repeats
    repeated_ids: Repeats
    faults: tuple[Fault, ...]
    refused_rows: int

    @property
    def exit_code(self) -> ExitCode:
        """0 when every row would be answered, 1 otherwise."""
        return ExitCode.ROW_FAILURES if self.refused_rows else ExitCode.OK


def validate_job(config: JobConfig, sample: int, speed: Speed | None, now: float) -> Validation:
    """Check a job as if it started now.

    Args:
        config: The job.
        sample: Rows to tokenise for statistics.
        speed: Of the machine; ``None`` for no estimate.
        now: Unix seconds.

    Raises:
        SpecbatchError: A run would not start; its exit code would be the same.
    """
    directory = run_directory(config, now)
    table = InputTable.open(config)
    check_place(RunDir(directory), config, table)
    index, look, job_rows = _looked_over(config, table, sample, now)
    _refuse_repeated(look, index, table)
    max_tokens = np.frombuffer(look.max_tokens, np.int64)
    left = _left(look, len(index))
    promised = index.take(left)
    if config.late == "drop":
        _refuse_late(look, late_rows(index, 0.0))
    estimate = None if speed is None else Estimate.of(speed, config.model, index, max_tokens)
    missing = f"{config.model} is not on this machine yet: run specbatch model pull {config.model}"
    return Validation(
        files=tuple(source.name for source in table.sources),
        run_directory=str(directory),
        rows=len(index),
        shard=config.shard,
        job_rows=job_rows,
        columns=tuple(dict.fromkeys(name for layout in table.layouts for name in layout.known)),
        carried=tuple(table.carried.names),
        tiers=_tiers(index.tier[index.asked != NO_TIER], list(config.tiers)),
        rows_with_slo=_rows_with_slo(promised),
        late=config.late,
        deadlines=_deadlines(promised),
        first_tokens=_first_tokens(promised),
        per_token=per_token(config, look.places(left), promised.tpot_ms, EXAMPLES),
        estimate=estimate,
        tokens=_token_stats(list(look.prompt_tokens.values())),
        tokenised_rows=look.tokenised,
        tokenizer_missing="" if look.tokenises else missing,
        max_output_tokens=int(max_tokens.sum()),
        repeated_prompts=look.repeated_prompts,
        repeated_ids=_repeated_ids(index, look),
        faults=tuple(sorted(look.faults.values(), key=lambda fault: -fault.rows)),
        refused_rows=sum(fault.rows for fault in look.faults.values()),
    )


def _looked_over(
    config: JobConfig, table: InputTable, sample: int, now: float
) -> tuple[RowIndex, Lookover, int]:
    """Index of the rows that are looked at, what was seen of them, and how many the whole job has."""
    shard, parser = Shard.of(config.shard), RowParser.of(config, now)
    text = _text_check(config, table.num_rows // (shard.count if shard else 1), sample)
    if shard is None:
        look = Lookover(parser, text)
        index = table.index(parser, look)
        return index, look, len(index)
    # Which rows a shard has shows when all have been read, so theirs are read once more.
    stripes = Stripes(parser)
    index = table.index(parser, stripes)
    rows = stripes.rows(shard)
    look = Lookover(parser, text, rows)
    table.index(parser, look)
    return index.take(rows), look, len(index)


def _refuse_repeated(look: Lookover, index: RowIndex, table: InputTable) -> None:
    """Rows with the id of an earlier one: only the whole table shows them."""
    rows = [row for row in np.flatnonzero(index.same_id >= 0).tolist() if row not in look.refused]
    names = table.ids([look.place(row) for row in rows[:EXAMPLES]])
    for row in rows:
        name = names.get(look.place(row), b"")
        look.refuse(duplicate_id(name, int(index.same_id[row]), index.files), row)


def _refuse_late(look: Lookover, rows: NDArray[np.int64]) -> None:
    """Rows that would never be scheduled."""
    for row in rows.tolist():
        look.refuse(RowFault("deadline_passed", "the deadline is past, and late = 'drop' ends the row"), row)


def _left(look: Lookover, total: int) -> NDArray[np.int64]:
    """Rows that are not refused."""
    left = np.ones(total, np.bool_)
    left[list(look.refused)] = False
    return np.flatnonzero(left)


def _repeated_ids(index: RowIndex, look: Lookover) -> Repeats:
    """Rows with the id of an earlier row; rows without one left out."""
    again = np.flatnonzero(index.same_id >= 0)
    first = tuple((look.place(int(row)), int(index.same_id[row])) for row in again[:EXAMPLES])
    return Repeats(len(again), first)


def _text_check(config: JobConfig, total: int, sample: int) -> TextCheck:
    side_files = find_side_files(config.model)
    if side_files is None:
        return TextCheck(None, 0, total, sample)
    max_context = ModelConfig.from_directory(side_files).max_context
    return TextCheck(open_encoder(config, side_files), max_context, total, sample)


def _tiers(codes: NDArray[np.int16], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}


def _rows_with_slo(index: RowIndex) -> int:
    promised = np.isfinite(index.deadline) | ~np.isnan(index.tpot_ms) | ~np.isnan(index.ttft_ms)
    return int(np.count_nonzero(promised))


def _deadlines(index: RowIndex) -> Deadlines:
    known = index.deadline[np.isfinite(index.deadline)]
    ahead = known[known > 0]
    return Deadlines(
        rows=len(known),
        past=len(late_rows(index, 0.0)),
        earliest_s=float(ahead.min()) if len(ahead) else None,
        latest_s=float(ahead.max()) if len(ahead) else None,
    )


def _first_tokens(index: RowIndex) -> FirstTokens:
    promised = index.ttft_ms[~np.isnan(index.ttft_ms)]
    return FirstTokens(len(promised), float(promised.min()) if len(promised) else None)


def _token_stats(lengths: Sequence[int]) -> TokenStats | None:
    if not len(lengths):
        return None
    values = np.asarray(lengths, np.int64)
    p50, p95 = np.percentile(values, (50, 95))
    return TokenStats(len(values), float(values.mean()), float(p50), float(p95), int(values.max()))
