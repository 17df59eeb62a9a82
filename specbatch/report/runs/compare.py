"""Two runs side by side: differences by tier, and whether they are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbatch.report.runs.columns import Floats, amounts, known, numbers, of_tier, tiers_of
from specbatch.report.runs.promises import ALL
from specbatch.report.runs.record import RunRecord
from specbatch.report.runs.same import Unlike, unlike

SEED = 20260101
RESAMPLES = 1000
FEW = 20
"""Below so many rows a spread is told with a warning."""

TOO_FEW = 6
"""Fewer rows never tell a difference from chance: if all of five change in one direction, that is a coin
which falls alike five times, and one in sixteen does (two-sided sign test: 2 / 2**5 > 0.05)."""

_MOST_DRAWS = 2**21
_LATENCIES = {"queued_s": "queued s", "ttft_s": "TTFT s", "tpot_ms": "TPOT ms", "e2e_s": "total s"}
Statistic = Callable[[NDArray[np.int64]], Floats]
"""Rows as drawn, ``[draws, rows]``, to one value for each draw, ``[draws]``; NaN where there is none."""


class _Number(NamedTuple):
    """How a number follows from drawn rows, and how many rows have a part in it."""

    of_drawn: Statistic
    rows: int


class _Drawn(NamedTuple):
    """A number of all rows, of many draws, and how many rows have a part in it."""

    whole: float
    draws: Floats
    rows: int


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both runs.

    Attributes:
        name: What it is, with its unit.
        first: In the first run, the baseline; ``None`` where it has none.
        second: Likewise.
        difference: Second less first.
        low: Lower end of the 95 % interval of the difference (Efron & Tibshirani 1993, section 13.3).
        high: Upper end.
        within_noise: Whether 0 is inside; ``None`` where there is no spread, or too few rows for one.
        rows: That have a part in it, in the first and in the second run.
    """

    name: str
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    within_noise: bool | None
    rows: tuple[int, int]

    @property
    def too_few(self) -> bool:
        """Whether so few rows have a part in it that nobody can tell a difference from chance."""
        return min(self.rows) < TOO_FEW


@dataclass(frozen=True, slots=True)
class TierChange:
    """One tier of both runs.

    Attributes:
        rows: In the first and in the second run.
        paired: Whether the same rows were drawn of both.
        changes: Its numbers.
    """

    rows: tuple[int, int]
    paired: bool
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs; the first is the baseline.

    Attributes:
        directories: Of the two.
        comparable: Whether model and input are the same, so that differences are the policy's or the
            machine's.
        unlike: What is not the same, with both values.
        tiers: Tier → changes, and ``all``; only tiers that both have.
        only_in: Tiers of one of the runs only.
        method: How the spread was computed, in words.
    """

    directories: tuple[str, str]
    comparable: bool
    unlike: list[Unlike]
    tiers: dict[str, TierChange]
    only_in: list[str]
    method: str


def compare(first: RunRecord, second: RunRecord) -> Comparison:
    """Compare two runs, tier by tier.

    Rows are drawn with replacement, the same ones of both runs where both answered the same job, and the
    numbers computed of what was drawn. That is the spread over rows; what differs from one night to the
    next on one machine is not in it.
    """
    different = unlike(first, second)
    comparable = not any(each.matters for each in different)
    tiers = [set(tiers_of(record.rows)) for record in (first, second)]
    pairs = {name: _tier((first, second), name, comparable) for name in [*sorted(tiers[0] & tiers[1]), ALL]}
    return Comparison(
        directories=(first.status.directory, second.status.directory),
        comparable=comparable,
        unlike=different,
        tiers=pairs,
        only_in=sorted(tiers[0] ^ tiers[1]),
        method=f"bootstrap over rows, at most {RESAMPLES} draws, seed {SEED}, 95 % interval of percentiles; "
        "rates take each run's engine seconds as given: what differs between nights is not in the spread",
    )


def _tier(records: tuple[RunRecord, RunRecord], name: str, comparable: bool) -> TierChange:
    tables = [_ordered(record.rows, name) for record in records]
    paired = comparable and _same_rows(*tables)
    sides = [
        _statistics(table, sum(attempt.engine_seconds for attempt in record.manifest.attempts))
        for table, record in zip(tables, records, strict=True)
    ]
    draws = [np.random.default_rng(SEED), np.random.default_rng(SEED if paired else SEED + 1)]
    values = [
        _drawn(side, table.num_rows, draw) for side, table, draw in zip(sides, tables, draws, strict=True)
    ]
    changes = [_change(what, [side[what] for side in values]) for what in sides[0] if what in sides[1]]
    return TierChange((tables[0].num_rows, tables[1].num_rows), paired, changes)


def _ordered(rows: pa.Table, tier: str) -> pa.Table:
    mine = rows if tier == ALL else of_tier(rows, tier)
    return mine if mine.column("row_index").null_count else mine.sort_by("row_index")


def _same_rows(first: pa.Table, second: pa.Table) -> bool:
    indices = first.column("row_index"), second.column("row_index")
    return not indices[0].null_count and bool(indices[0].equals(indices[1]))


def _statistics(table: pa.Table, seconds: float) -> dict[str, _Number]:
    """What is compared: name → how it follows from drawn rows."""
    met = pc.fill_null(table.column("slo_met").cast(pa.float64()), float("nan")).to_numpy()
    here = ~np.isnan(numbers(table, "e2e_s"))
    tokens = amounts(table, "output_tokens") * here
    good = tokens * (met == 1.0)
    found: dict[str, _Number] = {}
    promised = ~np.isnan(met)
    if promised.any():
        found["SLO met, share of rows"] = _quotient(np.nan_to_num(met), promised.astype(np.float64))
        if seconds:
            found["goodput, tokens/s"] = _Number(
                lambda rows: good[rows].sum(axis=1) / seconds, int(promised.sum())
            )
    if seconds:
        found["output, tokens/s"] = _Number(lambda rows: tokens[rows].sum(axis=1) / seconds, int(here.sum()))
    for column, name in _LATENCIES.items():
        for quantile in (50, 95):
            found[f"{name} p{quantile}"] = _quantile(numbers(table, column), quantile / 100)
    verifications, accepted = amounts(table, "verifications"), amounts(table, "accepted")
    if verifications.any():
        found["tokens per pass"] = _quotient(accepted + verifications, verifications)
    for column, name in (("device_s", "device ms per output token"), ("energy_j", "mJ per output token")):
        if known(table, column):
            found[name] = _quotient(1e3 * amounts(table, column), tokens)
    return found


def _quotient(parts: Floats, wholes: Floats) -> _Number:
    return _Number(lambda rows: _ratio(parts[rows], wholes[rows]), int((wholes > 0).sum()))


def _ratio(parts: NDArray[np.generic], wholes: NDArray[np.generic]) -> Floats:
    part, whole = parts.sum(axis=1).astype(np.float64), wholes.sum(axis=1).astype(np.float64)
    ratio: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return ratio


def _quantile(values: Floats, quantile: float) -> _Number:
    """Linear interpolation between ranks, of the rows that have a value."""

    def of_drawn(rows: NDArray[np.int64]) -> Floats:
        drawn = np.sort(values[rows], axis=1)  # rows without a value come last
        last = (~np.isnan(drawn)).sum(axis=1) - 1
        place = np.maximum(last, 0) * quantile
        below = np.floor(place).astype(np.int64)
        lines = np.arange(len(drawn))
        low, high = drawn[lines, below], drawn[lines, np.minimum(below + 1, np.maximum(last, 0))]
        return np.where(last >= 0, low + (place - below) * (high - low), np.nan)

    return _Number(of_drawn, int((~np.isnan(values)).sum()))


def _drawn(side: dict[str, _Number], rows: int, draw: np.random.Generator) -> dict[str, _Drawn]:
    """Each number of all rows, and of many draws of as many."""
    whole = np.arange(rows)[None, :]
    draws = min(RESAMPLES, max(100, 10 * _MOST_DRAWS // max(1, rows)))
    at_a_time = max(1, _MOST_DRAWS // max(1, rows))
    found: dict[str, list[Floats]] = {name: [] for name in side}
    for start in range(0, draws if rows > 1 else 0, at_a_time):
        drawn = draw.integers(0, rows, (min(at_a_time, draws - start), rows))
        for name, number in side.items():
            found[name].append(number.of_drawn(drawn))
    return {
        name: _Drawn(
            float(number.of_drawn(whole)[0]) if rows else float("nan"),
            np.concatenate(found[name]) if found[name] else np.empty(0),
            number.rows,
        )
        for name, number in side.items()
    }


def _change(name: str, sides: Sequence[_Drawn]) -> Change:
    (first, first_draws, here), (second, second_draws, there) = sides
    count = min(len(first_draws), len(second_draws))
    between = second_draws[:count] - first_draws[:count]
    between = between[~np.isnan(between)]
    low, high = (float(end) for end in np.percentile(between, (2.5, 97.5))) if len(between) else (None, None)
    return Change(
        name=name,
        first=None if np.isnan(first) else first,
        second=None if np.isnan(second) else second,
        difference=None if np.isnan(first - second) else second - first,
        low=low,
        high=high,
        within_noise=None
        if low is None or high is None or min(here, there) < TOO_FEW
        else low <= 0.0 <= high,
        rows=(here, there),
    )
