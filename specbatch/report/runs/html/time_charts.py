"""Drawings of a run over time: tokens, operations, modes of drafting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.html.charts import Frame, areas
from specbatch.report.runs.tables import large

Drawn = list[tuple[str, str]]

_FLOPS = {"prefill": "prompts", "written": "text", "rejected": "rejected drafts", "draft": "drafting"}
_MODES = {"tree": "tree", "chain": "chain", "free": "free draft", "off": "plain"}


def time_charts(report: RunReport) -> Drawn:
    """Tokens per second by tier, operations per second by purpose, rows by mode."""
    course = report.course
    if course is None:
        return []
    edges = course.edges
    width = edges[1] - edges[0]
    marks = [began for began in course.attempts[1:] if edges[0] <= began <= edges[-1]]
    tokens = _rates(course.tokens, width)
    power = {
        _FLOPS[name]: [value / 1e9 for value in values]
        for name, values in _rates(course.flops, width).items()
    }
    resumed = " Dotted: another attempt begins." if marks else ""
    drawn = [
        (
            areas(
                Frame("tokens", "Output tokens/s", _totals(course.tokens), "run time, s"),
                edges,
                tokens,
                marks,
            ),
            f"By tier. A row's tokens count evenly between its first and its last.{resumed}",
        ),
        (
            areas(
                Frame("flops", "Computation, GFLOP/s", _totals(course.flops, _FLOPS), "run time, s"),
                edges,
                power,
                marks,
            ),
            f"By formula, over the same spans.{_unplaced(course.unplaced_flops)}",
        ),
    ]
    choices = report.choices
    if choices is not None and choices.modes:
        modes = {_MODES.get(name, name): choices.modes[name] for name in sorted(choices.modes, key=_place)}
        told = ", ".join(f"{name}: {sum(values) * width:,.0f} row-seconds" for name, values in modes.items())
        drawn.append(
            (
                areas(
                    Frame("modes", "Rows by how they are decoded", told, "run time, s"), edges, modes, marks
                ),
                "From decisions.parquet: each row holds a mode until its next change.",
            )
        )
    return drawn


def _place(mode: str) -> int:
    return list(_MODES).index(mode) if mode in _MODES else len(_MODES)


def _rates(amounts: Mapping[str, Sequence[float]], width: float) -> dict[str, list[float]]:
    return {name: [value / width for value in values] for name, values in amounts.items()}


def _totals(amounts: Mapping[str, Sequence[float]], names: Mapping[str, str] | None = None) -> str:
    return ", ".join(
        f"{(names or {}).get(name, name)}: {large(sum(values))} in all" for name, values in amounts.items()
    )


def _unplaced(flops: float) -> str:
    return f" {large(flops)}FLOP of rows without times are not drawn." if flops else ""
