"""Kinds of drawings: curves, areas over time, bars and stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from specbatch.report.runs.columns import Floats
from specbatch.report.runs.html.svg import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    axes,
    colour,
    dash,
    drawing,
    legend,
    line,
    rect,
    text,
)
from specbatch.report.words import significant

_PLOT = 170
_POINTS = 160


@dataclass(frozen=True, slots=True)
class Frame:
    """What every drawing has.

    Attributes:
        identity: Unique on its page.
        title: What it shows.
        told: What can be seen in it, in words.
        unit: Of the horizontal axis, or of a bar's length.
    """

    identity: str
    title: str
    told: str
    unit: str = ""


def ecdf(frame: Frame, series: Mapping[str, Floats], limits: Mapping[str, float]) -> str:
    """Shares of rows that took at most so long: nothing is smoothed or binned.

    Args:
        frame: Of the drawing.
        series: Name → values; each gets a curve.
        limits: Name of a series → its SLO, a dotted line.
    """
    shown = {name: np.sort(values[~np.isnan(values)]) for name, values in series.items()}
    tops = [float(np.quantile(values, 0.99)) for values in shown.values() if len(values)]
    x = Scale(0.0, 1.05 * max([*tops, *limits.values()], default=1.0) or 1.0, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.0, TOP + _PLOT, TOP)
    parts = axes(x, y, frame.unit, percent=True)
    for number, (name, values) in enumerate(shown.items()):
        if name in limits:
            place = x.at(limits[name])
            parts.append(line((place, TOP), (place, TOP + _PLOT), f"slo c{colour(number)}"))
            side, anchor = (4, "start") if place < WIDTH / 2 else (-4, "end")
            parts.append(text(place + side, TOP + _PLOT - 6 - 14 * number, f"SLO {name}", anchor))
        if len(values):
            parts.append(_steps(values, x, y, number))
    keys, bottom = legend(list(shown), TOP + _PLOT + 32, lines=True)
    return drawing(frame.identity, frame.title, frame.told, bottom, [*parts, *keys])


def _steps(values: Floats, x: Scale, y: Scale, number: int) -> str:
    """One curve: every value where there are few, else evenly spaced ones."""
    ranks = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).round().astype(int))
    path = [f"M{x.start:.1f} {y.at(0.0):.1f}"]
    for rank in ranks.tolist():
        path.append(f"H{x.at(float(values[rank])):.1f}V{y.at((rank + 1) / len(values)):.1f}")
    return f'<path class="curve c{colour(number)}"{dash(number)} d="{"".join(path)}H{x.end:.1f}"/>'


def areas(
    frame: Frame, edges: Sequence[float], series: Mapping[str, Sequence[float]], marks: Sequence[float] = ()
) -> str:
    """Stacked amounts by span of time.

    Args:
        frame: Of the drawing.
        edges: Ends of the spans, ``[spans + 1]``.
        series: Name → amount per unit of time in each span, from the bottom up.
        marks: Moments to be marked by a line.
    """
    heights = np.asarray(list(series.values()), np.float64).reshape(len(series), len(edges) - 1)
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.05 * float(heights.sum(axis=0).max(initial=0.0)) or 1.0, TOP + _PLOT, TOP)
    parts = axes(x, y, frame.unit)
    below = np.zeros(heights.shape[1])
    for number, height in enumerate(heights):
        parts.append(_band(edges, below, below + height, (x, y), number))
        below = below + height
    parts += [line((x.at(mark), TOP), (x.at(mark), TOP + _PLOT), "slo axis") for mark in marks]
    keys, bottom = legend(list(series), TOP + _PLOT + 32, lines=False)
    return drawing(frame.identity, frame.title, frame.told, bottom, [*parts, *keys])


def _band(
    edges: Sequence[float], below: Floats, above: Floats, scales: tuple[Scale, Scale], number: int
) -> str:
    x, y = scales
    there = [
        f"{x.at(edges[span]):.1f},{y.at(high):.1f} {x.at(edges[span + 1]):.1f},{y.at(high):.1f}"
        for span, high in enumerate(above.tolist())
    ]
    back = [
        f"{x.at(edges[span + 1]):.1f},{y.at(low):.1f} {x.at(edges[span]):.1f},{y.at(low):.1f}"
        for span, low in reversed(list(enumerate(below.tolist())))
    ]
    return f'<polygon class="f{colour(number)} bound" points="{" ".join([*there, *back])}"/>'


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of parts.

    Attributes:
        label: What it is of.
        parts: Lengths, in the order of the drawing's series.
        tail: What is written above its end.
        outline: Length of a frame around it: what it could have been.
        mark: Where a line crosses it: what was due.
    """

    label: str
    parts: Sequence[float]
    tail: str = ""
    outline: float | None = None
    mark: float | None = None


def bars(frame: Frame, names: Sequence[str], rows: Sequence[Bar], most: float | None = None) -> str:
    """Bars one below the other, each with its name and number above it.

    Args:
        frame: Of the drawing.
        names: Of the parts, for the legend; with one part there is none.
        rows: The bars.
        most: Length of a whole bar; default: the longest.
    """
    longest = [max(sum(row.parts), row.outline or 0.0, row.mark or 0.0) for row in rows]
    x = Scale(0.0, most or max(longest, default=1.0) or 1.0, 0.0, WIDTH - 2)
    parts, top = [], float(TOP)
    for row in rows:
        parts.append(text(0, top + 11, row.label))
        parts.append(text(WIDTH - 2, top + 11, row.tail, "end", "dim"))
        done = 0.0
        for number, length in enumerate(row.parts):
            name = names[number] if number < len(names) else row.label
            tip = f"{row.label}, {name}: {significant(length)} {frame.unit}".strip()
            if length > 0:
                wide = x.at(done + length) - x.at(done)
                parts.append(rect(x.at(done), top + 16, wide, 16, f"f{colour(number)} bound", tip))
            done += length
        if row.outline is not None:
            parts.append(rect(1, top + 16, x.at(row.outline) - 1, 16, "outline"))
        if row.mark is not None:
            parts.append(line((x.at(row.mark), top + 13), (x.at(row.mark), top + 35), "mark"))
        top += 42
    keys: list[str] = []
    if len(names) > 1:
        keys, top = legend(names, top, lines=False)
    return drawing(frame.identity, frame.title, frame.told, top, [*parts, *keys])


def curves(
    frame: Frame,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    tips: Sequence[str],
    *,
    percent: bool = False,
) -> str:
    """Lines with dots over nights, evenly spaced; a gap where there is no value.

    Args:
        frame: Of the drawing.
        labels: Of the nights; the first and the last are written.
        series: Name → value by night.
        tips: What each night's dots are called under the pointer.
        percent: Whether values are shares of 1.
    """
    known = [value for values in series.values() for value in values if value is not None]
    top = 1.0 if percent else 1.05 * max(known, default=1.0) or 1.0
    x = Scale(0.0, max(1.0, len(labels) - 1.0), LEFT + 6, WIDTH - RIGHT - 6)
    y = Scale(0.0, top, TOP + _PLOT, TOP)
    parts = axes(Scale(0.0, 0.0, LEFT, WIDTH - RIGHT), y, "", percent=percent)
    parts = [part for part in parts if "middle" not in part]
    if labels:
        parts.append(text(LEFT, TOP + _PLOT + 15, labels[0], "start", "dim"))
    if len(labels) > 1:
        parts.append(text(WIDTH - RIGHT, TOP + _PLOT + 15, labels[-1], "end", "dim"))
    for number, (name, values) in enumerate(series.items()):
        at = [(x.at(place), None if value is None else y.at(value)) for place, value in enumerate(values)]
        path, pen = "", "M"
        for across, up in at:
            path += "" if up is None else f"{pen}{across:.1f} {up:.1f}"
            pen = "M" if up is None else "L"
        parts.append(f'<path class="curve c{colour(number)}"{dash(number)} d="{path}"/>')
        for place, (across, up) in enumerate(at):
            if up is not None:
                value = values[place] or 0.0
                tip = f"{tips[place]}, {name}: {f'{value:.1%}' if percent else significant(value)}"
                parts.append(
                    f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" class="f{colour(number)}">'
                    f"<title>{escape(tip)}</title></circle>"
                )
    keys, bottom = legend(list(series), TOP + _PLOT + 20, lines=True)
    return drawing(frame.identity, frame.title, frame.told, bottom, [*parts, *keys])


def intervals(frame: Frame, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Differences with their intervals, around a line at 0; beyond the whole of 1 they stay at the edge.

    Args:
        frame: Of the drawing.
        rows: Label, difference, lower and upper end.
    """
    reach = min(1.0, max((abs(end) for row in rows for end in row[1:]), default=1.0) or 1.0)
    x = Scale(-1.05 * reach, 1.05 * reach, 4.0, WIDTH - 4.0)
    bottom = TOP + 32.0 * len(rows)
    parts = [line((x.at(0.0), TOP), (x.at(0.0), bottom), "axis")]
    for place, (label, difference, low, high) in enumerate(rows):
        top = TOP + 32.0 * place
        number = 5 if low <= 0.0 <= high else 0
        parts.append(text(0, top + 11, label))
        parts.append(text(WIDTH - 2, top + 11, f"{difference:+.0%}", "end", "dim"))
        parts.append(line((x.at(low), top + 21), (x.at(high), top + 21), f"curve c{number}"))
        parts.append(f'<circle cx="{x.at(difference):.1f}" cy="{top + 21:.1f}" r="4" class="f{number}"/>')
    for value in x.ticks(4):
        anchor = "middle" if abs(value) < 0.9 * reach else "start" if value < 0 else "end"
        parts.append(text(x.at(value), bottom + 14, f"{value:+.0%}" if value else "0", anchor, "dim"))
    parts.append(text(WIDTH - 2, bottom + 29, frame.unit, "end", "dim"))
    return drawing(frame.identity, frame.title, frame.told, bottom + 36, parts)
