"""What each tier was promised, and how much of it was kept: every number beside its definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbatch.report.promises import misses
from specbatch.report.runs.columns import Floats, amounts, known, moments, numbers, of_tier, share, tiers_of
from specbatch.report.words import seconds, significant

ALL = "all"


@dataclass(frozen=True, slots=True)
class Limit:
    """One kind of promise of a tier.

    Attributes:
        kind: ``ttft_s``, ``tpot_ms`` or ``e2e_s``.
        least: The tightest that any row has.
        middle: Their median.
        most: The loosest.
        origin: ``rows`` where it was read from the rows, ``tier`` where only the job file says it.
        rows: How many have it; 0 where only the job file says it.
    """

    kind: str
    least: float
    middle: float
    most: float
    origin: str
    rows: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Promises of a tier, or of all rows; a row counts once, with all of its promises.

    Attributes:
        definition: What had to be kept, in words.
        limits: The same as numbers.
        rows: Of the tier.
        with_slo: Those that were promised anything.
        attained: Those that had all of it.
        missed: The others of them, likewise by reason.
        attainment: ``attained / with_slo``; ``violation_ratio`` is the rest of 1.
        output_tokens: Of all rows, by this run.
        attained_tokens: Of rows that attained.
        tokens_per_s: Output tokens per second of engine time: what goodput is compared with.
        goodput_tokens_per_s: Of rows that attained.
        verified_tokens: What the target computed for answers: drafted tokens, and one for each verification.
    """

    definition: str
    limits: list[Limit]
    rows: int
    with_slo: int
    attained: int
    missed: int
    missed_by_reason: dict[str, int]
    moved_by_reason: dict[str, int]
    attainment: float | None
    violation_ratio: float | None
    output_tokens: int
    attained_tokens: int
    tokens_per_s: float | None
    goodput_tokens_per_s: float | None
    verified_tokens: int


def kept_by_tier(table: pa.Table, config: Mapping[str, object], engine_seconds: float) -> dict[str, Kept]:
    """Tier → promises, and ``all`` at the end.

    Args:
        table: Rows.
        config: Settings of the job, as in ``run.json``.
        engine_seconds: Of all attempts.
    """
    tiers = config.get("tiers")
    settings = tiers if isinstance(tiers, dict) else {}
    found = {
        tier: _kept(of_tier(table, tier), settings.get(tier, {}), engine_seconds) for tier in tiers_of(table)
    }
    return {**found, ALL: _kept(table, {}, engine_seconds)}


def _kept(table: pa.Table, settings: Mapping[str, object], seconds: float) -> Kept:
    met = table.column("slo_met")
    with_slo = table.num_rows - met.null_count
    attained = int(pc.sum(met).as_py() or 0)
    # Answers taken over from another run have no latency, and took none of the time.
    here = table.filter(pc.is_valid(table.column("e2e_s")))
    tokens = float(amounts(here, "output_tokens").sum())
    good = float(amounts(here.filter(pc.fill_null(here.column("slo_met"), False)), "output_tokens").sum())
    limits = limits_of(table, settings) if with_slo else []
    why = misses(table)
    return Kept(
        definition=_definition(limits, with_slo),
        limits=limits,
        rows=table.num_rows,
        with_slo=with_slo,
        attained=attained,
        missed=with_slo - attained,
        missed_by_reason=why["missed"],
        moved_by_reason=why["moved"],
        attainment=share(attained, with_slo),
        violation_ratio=share(with_slo - attained, with_slo),
        output_tokens=int(tokens),
        attained_tokens=int(good),
        tokens_per_s=share(tokens, seconds),
        goodput_tokens_per_s=share(good, seconds),
        verified_tokens=why["verified_tokens"],
    )


def limits_of(table: pa.Table, settings: Mapping[str, object]) -> list[Limit]:
    """The promises that rows carry, or their tier's where they carry none.

    Args:
        table: Rows of one tier.
        settings: Of the tier in the job file.
    """
    allowed = moments(table, "deadline") - moments(table, "arrival")
    found = [
        _limit("ttft_s", *_carried(table, "ttft_slo_ms", settings, 1e-3)),
        _limit("tpot_ms", *_carried(table, "tpot_slo_ms", settings, 1.0)),
        _limit("e2e_s", allowed, "rows"),
    ]
    return [limit for limit in found if limit is not None]


def _carried(table: pa.Table, name: str, settings: Mapping[str, object], scale: float) -> tuple[Floats, str]:
    if name in table.column_names and known(table, name):
        return scale * numbers(table, name), "rows"
    value = settings.get(name)
    values = [scale * float(value)] if isinstance(value, int | float) else []
    return np.asarray(values), "tier"


def _limit(kind: str, values: Floats, origin: str) -> Limit | None:
    there = values[~np.isnan(values)]
    if not len(there):
        return None
    known = len(there) if origin == "rows" else 0
    return Limit(kind, float(there.min()), float(np.median(there)), float(there.max()), origin, known)


def _definition(limits: list[Limit], with_slo: int) -> str:
    if not with_slo:
        return "nothing promised"
    return (
        ", ".join(_in_words(limit, with_slo) for limit in limits)
        or "as its rows say; the results do not repeat it"
    )


def _in_words(limit: Limit, with_slo: int) -> str:
    name = {"ttft_s": "TTFT", "tpot_ms": "TPOT", "e2e_s": "done in"}[limit.kind]
    least, most = (
        f"{significant(value)} ms" if limit.kind == "tpot_ms" else seconds(value)
        for value in (limit.least, limit.most)
    )
    some = f" ({limit.rows:,} row{'' if limit.rows == 1 else 's'})" if 0 < limit.rows < with_slo else ""
    if limit.most - limit.least < 1e-6 * max(1.0, abs(limit.most)):
        return f"{name} <= {least}{some}"
    if least.rpartition(" ")[2] == most.rpartition(" ")[2]:
        least = least.rpartition(" ")[0]
    return f"{name} <= {least} to {most}{some}"
