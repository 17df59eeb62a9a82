"""Whether ``summary.json`` says what the tables say: every field, both values where they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specbatch.report.runs.record import RunRecord
from specbatch.report.summary import Summary

TOLERANCE = 1e-9
"""Relative: sums may be added up in another order."""

_OF_ROWS = ("rows", "failures", "tokens", "slo", "latency", "tiers", "speculation", "promises", "compute")
_ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, by its path, e.g. ``tiers.batch.slo.rows_attained``."""

    field: str
    recorded: Any
    recomputed: Any


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of the recorded summary with the tables.

    Attributes:
        compared: Fields that were looked at; 0 when there is nothing to compare with.
        differences: Those that are not equal.
        note: What was not compared, and why; empty when everything was.
    """

    compared: int
    differences: list[Difference]
    note: str = ""


def check_summary(record: RunRecord, recomputed: Summary) -> Check:
    """Compare field by field; numbers to 1e-9, relative."""
    recorded = record.recorded
    if recorded is None:
        return Check(0, [], "there is no summary.json to compare with")
    if record.source != "results.parquet" or (record.has_manifest and not record.finished):
        return Check(0, [], "summary.json is not about these rows and was not compared")
    again: Mapping[str, Any] = json.loads(json.dumps(recomputed))
    note = ""
    if not record.has_manifest:
        recorded, again = ({name: each.get(name) for name in _OF_ROWS} for each in (recorded, again))
        note = "without run.json, times, rates and engine counts of summary.json cannot be checked"
    versions = recorded.get("schema_version"), again.get("schema_version")
    if versions[0] != versions[1]:
        # Another version counts other things: only what both know of can be compared.
        known = set(_flat(again))
        recorded = {path: value for path, value in _flat(recorded).items() if path in known}
        again = {path: value for path, value in _flat(again).items() if path in recorded}
        note = f"summary.json is of schema version {versions[0]}, not {versions[1]}: fields of both compared"
    old, new = _flat(recorded), _flat(again)
    paths = dict.fromkeys([*old, *new])
    different = [
        Difference(path, old.get(path, _ABSENT), new.get(path, _ABSENT))
        for path in paths
        if not _equal(old.get(path, _ABSENT), new.get(path, _ABSENT))
    ]
    return Check(len(paths), [each for each in different if each.field != "schema_version" or not note], note)


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_leaves("", content))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Paths of all values that hold no others; empty lists and tables are values."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    if not value or not isinstance(value, dict | list):
        yield path, value
    for name, inner in entries:
        yield from _leaves(f"{path}.{name}" if path else str(name), inner)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(old, bool):
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(old == new)
