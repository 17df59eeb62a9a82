"""``summary.json``: every number recomputed from ``results.parquet`` and the attempts in ``run.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbatch.report.energy import COLUMNS as ENERGY_COLUMNS
from specbatch.report.energy import Energy, energy, time_shares
from specbatch.report.failures import Failure, failures, unreadable
from specbatch.report.promises import COLUMNS as PROMISE_COLUMNS
from specbatch.report.promises import Misses, Shares, is_share, misses, shares
from specbatch.report.speculation import COLUMNS as SPECULATION_COLUMNS
from specbatch.report.speculation import Speculation, speculation
from specbatch.rows import Status
from specbatch.table.manifest import Attempt, Manifest
from specbatch.table.schema import SCHEMA_VERSION

LATENCIES = ("queued_s", "ttft_s", "tpot_ms", "e2e_s")
QUANTILES = (50, 95, 99)
COLUMNS = tuple(
    dict.fromkeys(
        (
            *("tier", "status", "slo_met", "deadline_met", "prompt_tokens", "cached_prompt_tokens"),
            *("num_preemptions", "recomputed_tokens", "target_passes", *LATENCIES),
            *(*SPECULATION_COLUMNS, *PROMISE_COLUMNS, *ENERGY_COLUMNS),
        )
    )
)
"""Columns of the results that the numbers are computed from."""
_COMPUTE = ("prefill_flops", "verify_flops", "draft_flops", "rejected_flops", "target_passes")

Quantiles = dict[str, float | None]
"""``p50``, ``p95``, ``p99``: linear interpolation between ranks; null without values."""


class RowCounts(TypedDict):
    """Rows by how they ended."""

    total: int
    by_status: dict[str, int]


class TokenCounts(TypedDict):
    """Tokens of rows that succeeded and those that did not, summed."""

    prompt: int
    cached_prompt: int
    output: int
    recomputed: int


class SloCounts(TypedDict):
    """Promises: a row counts once, all of its SLOs together."""

    rows_with_slo: int
    rows_attained: int
    attainment: float | None
    rows_with_deadline: int
    deadlines_met: int


class Rates(TypedDict):
    """Tokens per second of engine time; ``goodput`` counts rows that attained all their SLOs.

    Answers taken over from another run are not in it.

    Rows that were promised nothing can neither attain nor miss: they are ``without_slo``.
    """

    output_tokens_per_s: float | None
    goodput_tokens_per_s: float | None
    without_slo_tokens_per_s: float | None
    goodput_tokens_per_device_hour: float | None


class TierSummary(TypedDict):
    """One latency class."""

    rows: int
    output_tokens: int
    slo: SloCounts
    latency: dict[str, Quantiles]
    speculation: Speculation
    promises: Misses


class Summary(TypedDict):
    """The whole document. Times in seconds, sizes in bytes, unless the name says otherwise."""

    schema_version: int
    run_id: str
    specbatch: str
    model: dict[str, object]
    rows: RowCounts
    failures: list[Failure]
    tokens: TokenCounts
    slo: SloCounts
    rates: Rates
    latency: dict[str, Quantiles]
    tiers: dict[str, TierSummary]
    speculation: Speculation
    promises: Misses
    shares: Shares
    compute: dict[str, float]
    time: dict[str, float | int]
    memory: dict[str, float | int | str | None]  # like engine and shares without killed and failed attempts
    engine: dict[str, float | int | str | None]
    energy: Energy


def summarise(results: Path, manifest: Manifest) -> Summary:
    """Recompute all numbers.

    Args:
        results: ``results.parquet``.
        manifest: Of the same run.

    Raises:
        StorageError: The results cannot be read.
    """
    return summarise_rows(_read(results), failures(results, manifest.fail_on), manifest)


def summarise_rows(table: pa.Table, failed: list[Failure], manifest: Manifest) -> Summary:
    """The same of rows that were read already.

    Args:
        table: Has the columns ``COLUMNS``.
        failed: Those of its rows that failed.
        manifest: Of the same run.
    """
    seconds = sum(attempt.engine_seconds for attempt in manifest.attempts)
    device_seconds = sum(attempt.seconds for attempt in manifest.attempts)
    stats = _stats(manifest.attempts)
    tiers = sorted(set(table.column("tier").to_pylist()) - {None})
    drafts = speculation(table)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": manifest.run_id,
        "specbatch": manifest.specbatch,
        "model": manifest.model,
        "rows": _row_counts(table),
        "failures": failed,
        "tokens": _token_counts(table),
        "slo": _slo_counts(table),
        "rates": _rates(_computed_here(table), seconds, device_seconds),
        "latency": _latencies(table),
        "tiers": {tier: _tier(table.filter(pc.equal(table.column("tier"), tier))) for tier in tiers},
        "speculation": drafts,
        "promises": misses(table),
        "shares": shares(stats),
        "compute": {name: _total(table, name) for name in _COMPUTE},
        "time": {
            "attempts": len(manifest.attempts),
            "engine_seconds": seconds,
            "device_seconds": device_seconds,
            **time_shares(table, manifest.attempts),
        },
        "memory": {name: value for name, value in stats.items() if _is_memory(name)},
        "engine": {name: value for name, value in stats.items() if not (_is_memory(name) or is_share(name))},
        "energy": energy(table, manifest.attempts, drafts),
    }


def read_summary(path: Path) -> Summary | None:
    """The content of a ``summary.json``; ``None`` when it is missing, damaged or of another version.

    It can be computed again at any time, so there is nothing to complain about.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(content, dict) and content.keys() >= Summary.__annotations__.keys()
    return cast("Summary", content) if is_ours else None


def _read(results: Path) -> pa.Table:
    try:
        return pq.read_table(results, columns=list(COLUMNS), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(results, error) from error


def _stats(attempts: Sequence[Attempt]) -> dict[str, float | int | str | None]:
    """Counts add up over attempts; peaks, sizes and labels do not."""
    total: dict[str, float | int | str | None] = {}
    for attempt in attempts:
        for name, value in attempt.stats.items():
            before = total.get(name)
            if isinstance(value, int | float) and isinstance(before, int | float):
                total[name] = max(before, value) if _is_level(name) else before + value
            else:
                total[name] = value or before or value  # a word said once is not taken back by silence
    return total


def _is_level(name: str) -> bool:
    return name in (
        "kv_bytes_per_token",
        "kv_page_size",
        "kv_pages_total",
        "kv_pages_peak",
        "draft_pages_peak",
        "peak_resident_bytes",
    )


def _is_memory(name: str) -> bool:
    return name.startswith("kv_") or name in ("draft_pages_peak", "peak_resident_bytes")


def _row_counts(table: pa.Table) -> RowCounts:
    counts = dict.fromkeys((status.value for status in Status), 0)
    for item in pc.value_counts(table.column("status")).to_pylist():
        counts[item["values"]] = item["counts"]
    return {"total": table.num_rows, "by_status": counts}


def _token_counts(table: pa.Table) -> TokenCounts:
    return {
        "prompt": int(_total(table, "prompt_tokens")),
        "cached_prompt": int(_total(table, "cached_prompt_tokens")),
        "output": int(_total(table, "output_tokens")),
        "recomputed": int(_total(table, "recomputed_tokens")),
    }


def _slo_counts(table: pa.Table) -> SloCounts:
    promised = table.num_rows - table.column("slo_met").null_count
    attained = int(_total(table, "slo_met"))
    return {
        "rows_with_slo": promised,
        "rows_attained": attained,
        "attainment": attained / promised if promised else None,
        "rows_with_deadline": table.num_rows - table.column("deadline_met").null_count,
        "deadlines_met": int(_total(table, "deadline_met")),
    }


def _computed_here(table: pa.Table) -> pa.Table:
    """Without answers taken over from another run: they have no latency, and took none of the time."""
    return table.filter(pc.is_valid(table.column("e2e_s")))


def _rates(table: pa.Table, seconds: float, device_seconds: float) -> Rates:
    met = table.column("slo_met")
    succeeded = pc.is_in(
        table.column("status"), value_set=pa.array([Status.OK.value, Status.TRUNCATED.value])
    )
    attained = _total(table.filter(pc.fill_null(met, False)), "output_tokens")
    free = _total(table.filter(pc.and_(pc.is_null(met), succeeded)), "output_tokens")
    return {
        "output_tokens_per_s": _per(_total(table, "output_tokens"), seconds),
        "goodput_tokens_per_s": _per(attained, seconds),
        "without_slo_tokens_per_s": _per(free, seconds),
        "goodput_tokens_per_device_hour": _per(3600 * attained, device_seconds),
    }


def _tier(table: pa.Table) -> TierSummary:
    return {
        "rows": table.num_rows,
        "output_tokens": int(_total(table, "output_tokens")),
        "slo": _slo_counts(table),
        "latency": _latencies(table),
        "speculation": speculation(table),
        "promises": misses(table),
    }


def _latencies(table: pa.Table) -> dict[str, Quantiles]:
    return {name: quantiles(table.column(name).drop_null().to_numpy()) for name in LATENCIES}


def quantiles(values: Iterable[float]) -> Quantiles:
    """p50, p95 and p99 of some numbers; null of none."""
    numbers = np.asarray(list(values), np.float64)
    if not len(numbers):
        return {f"p{quantile}": None for quantile in QUANTILES}
    points = np.percentile(numbers, QUANTILES)
    return {f"p{quantile}": float(point) for quantile, point in zip(QUANTILES, points, strict=True)}


def _total(table: pa.Table, name: str) -> float:
    total = pc.sum(table.column(name)).as_py()
    return 0.0 if total is None else float(total)


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
