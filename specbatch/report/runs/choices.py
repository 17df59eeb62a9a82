"""What the controller decided: how often and why, how rows were decoded over time, and how it came out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbatch.report.runs.columns import amounts, numbers, share
from specbatch.report.runs.course import spread

_HOLDING = ("change", "fallback", "step", "row")
"""Events that say how a row is decoded from then on; ``row`` is its end."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Sums over ``decisions.parquet``.

    Attributes:
        events: Event → reason → lines.
        modes: Mode → rows decoded so on average, by span of time.
        edges: Ends of the spans, seconds on the run clock.
        fallback_steps: Row steps that decoded plainly although the policy is meant to do more.
        expected_tokens: What the policy expected of rows that never fell back; ``None`` where it predicts
            nothing.
        tokens: What came of the same rows.
        calibration_error: Expected / come of it, less 1.
        row_error: Mean distance of the two over these rows, tokens per step.
        predicted_gain: Mean predicted gain of rows in tokens per second against plain decoding.
        real_gain: The same as measured, against plain decoding as predicted.
    """

    events: dict[str, dict[str, int]]
    modes: dict[str, list[float]]
    edges: list[float]
    fallback_steps: int
    expected_tokens: float | None
    tokens: int
    calibration_error: float | None
    row_error: float | None
    predicted_gain: float | None
    real_gain: float | None


def choices_of(decisions: pa.Table, edges: list[float]) -> Choices:
    """Sum up decisions.

    Args:
        decisions: As in :class:`specbatch.report.runs.record.RunRecord`.
        edges: Ends of spans, seconds on the run clock; empty for no modes over time.
    """
    rows = decisions.filter(pc.equal(decisions.column("event"), "row"))
    predicted = rows.filter(
        pc.and_(pc.is_valid(rows.column("expected")), pc.equal(pc.fill_null(rows.column("fallbacks"), 0), 0))
    )
    expected, tokens = amounts(predicted, "expected"), amounts(predicted, "tokens")
    steps = np.maximum(amounts(predicted, "steps"), 1.0)
    has = predicted.num_rows > 0
    off = share(float(expected.sum()), float(tokens.sum())) if has else None
    return Choices(
        events=_events(decisions),
        modes=_modes(decisions, edges) if edges else {},
        edges=edges,
        fallback_steps=int(amounts(rows, "fallbacks").sum()),
        expected_tokens=float(expected.sum()) if has else None,
        tokens=int(tokens.sum()),
        calibration_error=None if off is None else off - 1.0,
        row_error=float(np.mean(np.abs(expected - tokens) / steps)) if has else None,
        predicted_gain=_mean(rows, "gain"),
        real_gain=_mean(rows, "real_gain"),
    )


def _mean(rows: pa.Table, name: str) -> float | None:
    """Mean over steps of a column of means over a row's steps."""
    values, steps = numbers(rows, name), amounts(rows, "steps")
    there = ~np.isnan(values) & (steps > 0)
    return float(np.average(values[there], weights=steps[there])) if there.any() else None


def _events(decisions: pa.Table) -> dict[str, dict[str, int]]:
    """The most frequent reason of each event first; a row's summary is no event of its own."""
    kept = decisions.filter(pc.not_equal(decisions.column("event"), "row"))
    counts = kept.group_by(["event", "reason"]).aggregate([([], "count_all")]).to_pylist()
    events: dict[str, dict[str, int]] = {}
    for entry in sorted(counts, key=lambda entry: (entry["event"], -entry["count_all"], entry["reason"])):
        events.setdefault(entry["event"], {})[entry["reason"]] = entry["count_all"]
    return events


def _modes(decisions: pa.Table, edges: list[float]) -> dict[str, list[float]]:
    """Rows by how they were decoded: each holds a mode from the line that says so to its next line."""
    of_rows = pc.and_(
        pc.and_(pc.is_valid(decisions.column("row")), pc.is_valid(decisions.column("time_s"))),
        pc.is_in(decisions.column("event"), value_set=pa.array(_HOLDING)),
    )
    held = decisions.filter(of_rows)
    held = held.sort_by([("attempt", "ascending"), ("row", "ascending"), ("time_s", "ascending")])
    if not held.num_rows:
        return {}
    attempt, time = numbers(held, "attempt"), numbers(held, "time_s")
    row = held.column("row").combine_chunks().dictionary_encode().indices.to_numpy()
    ends = pc.equal(held.column("event"), "row").to_numpy()
    same = np.zeros(len(time), np.bool_)
    same[:-1] = (attempt[1:] == attempt[:-1]) & (row[1:] == row[:-1]) & ~ends[:-1]
    begin, end = time[same], np.concatenate([time[1:], [0.0]])[same]
    at = np.asarray(edges)
    width = float(at[1] - at[0])
    begin, end = np.clip(begin, at[0], at[-1]), np.clip(end, at[0], at[-1])
    names = np.asarray(pc.fill_null(held.column("mode"), "off").to_pylist())[same]
    return {
        str(name): (
            spread(at, begin[names == name], end[names == name], (end - begin)[names == name]) / width
        ).tolist()
        for name in sorted(set(names.tolist()))
    }
