"""Declared schemas of everything we write, and how an answer becomes a row of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.rows import Answer
from specbatch.table.keys import KEY_BYTES

SCHEMA_VERSION = 4
KEY = "key"
TOKEN_IDS = "token_ids"  # noqa: S105 (a column, not a secret)
HISTOGRAM = "accept_histogram"
DRAFT_COUNTS = (
    *("drafted", "unselected", "selected", "pruned", "verified", "accepted", "rejected", "trimmed"),
    *("verifications", "draft_passes"),
)
"""Integer columns of the account of drafted tokens: fields of :class:`specbatch.account.DraftAccount`."""
SHARES = ("device_s", "draft_s", "rejected_s", "energy_j")
"""What is attributed to a row of the run's time and energy; null where it never ran in this run."""
_TIME = pa.timestamp("us", "UTC")
FIRST_SECOND, LAST_SECOND = -62135596800, 253402300799
"""Unix times of the years 1 and 9999; timestamps outside cannot become Python datetimes."""

_FIELDS = (
    pa.field("row_index", pa.int64(), nullable=False),
    pa.field("id", pa.string()),
    pa.field("tier", pa.string()),
    pa.field("status", pa.string(), nullable=False),
    pa.field("error_code", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("text", pa.string()),
    pa.field(TOKEN_IDS, pa.list_(pa.int32())),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("output_tokens", pa.int32()),
    pa.field("cached_prompt_tokens", pa.int32()),
    pa.field("arrival", _TIME),
    pa.field("queued_s", pa.float64()),
    pa.field("ttft_s", pa.float64()),
    pa.field("tpot_ms", pa.float64()),
    pa.field("e2e_s", pa.float64()),
    pa.field("deadline", _TIME),
    pa.field("ttft_slo_ms", pa.float64()),
    pa.field("tpot_slo_ms", pa.float64()),
    pa.field("deadline_met", pa.bool_()),
    pa.field("slo_met", pa.bool_()),
    pa.field("miss_reason", pa.string()),
    pa.field("served_tier", pa.string()),
    pa.field("tier_reason", pa.string()),
    pa.field("num_preemptions", pa.int32()),
    pa.field("recomputed_tokens", pa.int64()),
    pa.field("target_passes", pa.int64()),
    pa.field("prefill_flops", pa.float64()),
    pa.field("verify_flops", pa.float64()),
    *(pa.field(name, pa.int64()) for name in DRAFT_COUNTS),
    pa.field(HISTOGRAM, pa.list_(pa.int64())),
    pa.field("draft_flops", pa.float64()),
    pa.field("rejected_flops", pa.float64()),
    *(pa.field(name, pa.float64()) for name in SHARES),
    pa.field("policy", pa.string()),
    pa.field("engine", pa.string()),
)
# Copied from the input when the results are put together: it may differ between two runs of one row.
_FROM_INPUT = ("id",)


def output_schema(token_ids: bool) -> pa.Schema:
    """Our columns of ``results.parquet``, in order; pass-through columns follow."""
    return pa.schema([field for field in _FIELDS if token_ids or field.name != TOKEN_IDS])


def part_schema(token_ids: bool) -> pa.Schema:
    """Columns of a part: the row's key and everything that does not come from the input.

    ``row_index`` is the row's place when it ended, for reports of unfinished runs; results have the place of
    the input that they answer. It is null for answers of another run.
    """
    fields = [field for field in output_schema(token_ids) if field.name not in _FROM_INPUT]
    fields = [field.with_nullable(True) if field.name == "row_index" else field for field in fields]
    return pa.schema([pa.field(KEY, pa.binary(KEY_BYTES), nullable=False), *fields])


def carried_names(carried: Iterable[str]) -> dict[str, str]:
    """Output name of each pass-through column: ``input_`` is put before those that clash with ours."""
    carried = list(carried)
    taken = {field.name for field in _FIELDS} | set(carried)
    names: dict[str, str] = {}
    for name in carried:
        output = name
        if name in output_schema(token_ids=True).names:
            output = f"input_{name}"
            while output in taken:
                output = f"input_{output}"
            taken.add(output)
        names[name] = output
    return names


def results_schema(token_ids: bool, carried: pa.Schema) -> pa.Schema:
    """The whole of ``results.parquet``: ours, then the pass-through columns."""
    names = carried_names(carried.names)
    return pa.schema([*output_schema(token_ids), *(field.with_name(names[field.name]) for field in carried)])


def answers_to_batch(
    answers: list[Answer],
    schema: pa.Schema,
    epoch: float,
    policy: str,
    engine: str,
    picked: NDArray[np.int64] | None = None,
) -> pa.RecordBatch:
    """Answers as rows of a part.

    Args:
        answers: In the order they finished.
        schema: From :func:`part_schema`.
        epoch: Unix time of the run clock's zero, seconds.
        policy: Constant column.
        engine: Constant column.
        picked: Places of a shard's rows in the job, ``[rows]``; ``None``: the job's own.
    """
    rows = [_cells(answer, epoch, policy, engine) for answer in answers]
    if picked is not None:
        rows = [row | {"row_index": int(picked[row["row_index"]])} for row in rows]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cells(answer: Answer, epoch: float, policy: str, engine: str) -> dict[str, Any]:
    deadline = answer.slo.deadline
    finish = answer.finish_reason
    return {
        KEY: bytes.fromhex(answer.key),
        "row_index": answer.row_index,
        "tier": answer.tier,
        "status": answer.status.value,
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "finish_reason": None if finish is None else finish.value,
        "text": answer.text,
        TOKEN_IDS: list(answer.token_ids),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens,
        "arrival": _microseconds(epoch + answer.arrival),
        "queued_s": answer.queued_s,
        "ttft_s": answer.ttft_s,
        "tpot_ms": answer.tpot_ms,
        "e2e_s": answer.e2e_s,
        "deadline": None if deadline is None else _microseconds(epoch + deadline),
        "ttft_slo_ms": answer.slo.ttft_ms,
        "tpot_slo_ms": answer.slo.tpot_ms,
        "deadline_met": answer.deadline_met,
        "slo_met": answer.slo_met,
        "miss_reason": answer.miss_reason,
        "served_tier": answer.served_tier,
        "tier_reason": answer.tier_reason,
        "num_preemptions": answer.num_preemptions,
        "recomputed_tokens": answer.recomputed_tokens,
        "target_passes": answer.target_passes,
        "prefill_flops": answer.prefill_flops,
        "verify_flops": answer.verify_flops,
        **{name: getattr(answer.drafts, name) for name in DRAFT_COUNTS},
        HISTOGRAM: answer.drafts.accept_histogram,
        "draft_flops": answer.drafts.draft_flops,
        "rejected_flops": answer.drafts.rejected_flops,
        **_shares(answer),
        "policy": policy,
        "engine": engine,
    }


def _shares(answer: Answer) -> dict[str, float | None]:
    """Columns of :data:`SHARES`."""
    share = answer.share
    if share is None:
        return dict.fromkeys(SHARES)
    return dict(zip(SHARES, (share.device_s, share.draft_s, share.rejected_s, share.joules), strict=True))


def _microseconds(seconds: float) -> int:
    """Unix microseconds, kept inside the years 1 to 9999."""
    return round(max(FIRST_SECOND, min(LAST_SECOND, seconds)) * 1e6)
