"""Who missed, and why; who ran under another tier; who had how much of the verified tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("miss_reason", "tier_reason", "verified", "verifications")
"""Columns of the results that this is computed from."""

_ENTITLED, _ACHIEVED = "entitled_tokens.", "achieved_tokens."

Stats = Mapping[str, float | int | str | None]


class Shares(TypedDict):
    """Verified tokens of tiers that were promised a share, while they had rows.

    ``fairness`` is Jain's index of achieved / entitled over these tiers: 1 when all had as much of what
    was due to them (Jain, Chiu & Hawe 1984, section 2); null below two tiers.
    """

    entitled_tokens: dict[str, float]
    achieved_tokens: dict[str, float]
    fairness: float | None


class Misses(TypedDict):
    """Rows by why a promise was not kept, and by why they ran under another tier; tokens as verified."""

    missed: dict[str, int]
    moved: dict[str, int]
    verified_tokens: int


def misses(table: pa.Table) -> Misses:
    """Of some rows of the results."""
    tokens = pc.add(pc.fill_null(table.column("verified"), 0), pc.fill_null(table.column("verifications"), 0))
    return {
        "missed": _counts(table, "miss_reason"),
        "moved": _counts(table, "tier_reason"),
        "verified_tokens": pc.sum(tokens).as_py() or 0,
    }


def shares(stats: Stats) -> Shares:
    """From the engine's counts, summed over attempts."""
    entitled, achieved = _under(stats, _ENTITLED), _under(stats, _ACHIEVED)
    ratios = [achieved.get(tier, 0.0) / due for tier, due in entitled.items() if due]
    squares = len(ratios) * sum(ratio**2 for ratio in ratios)
    return {
        "entitled_tokens": entitled,
        "achieved_tokens": achieved,
        "fairness": sum(ratios) ** 2 / squares if len(ratios) > 1 and squares else None,
    }


def is_share(name: str) -> bool:
    """Whether one of the engine's counts is told here."""
    return name.startswith((_ENTITLED, _ACHIEVED))


def _under(stats: Stats, prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in stats.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def _counts(table: pa.Table, name: str) -> dict[str, int]:
    counts = pc.value_counts(table.column(name).drop_null()).to_pylist()
    return {item["values"]: item["counts"] for item in sorted(counts, key=lambda item: -item["counts"])}
