"""A profile as a picture: one SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from specbatch.hardware.cost import CostTable
from specbatch.report.words import significant

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by colour-blind readers, too (Okabe & Ito 2008)."""

_WIDTH, _HEIGHT, _LEFT, _TOP = 400, 260, 56, 44
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold;font-size:14px}"
    ".g{stroke:#ddd}.a{stroke:#222}.l{fill:none;stroke-width:2}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart.

    Attributes:
        label: For the legend.
        points: (size, milliseconds), rising.
        colour: Index of a colour.
        dashed: Whether it is.
    """

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


def svg_of(table: CostTable) -> str:
    """The file's content: target passes, and draft levels beside them."""
    charts = [_chart("Target pass, ms, by tokens", _pass_lines(table), 0)]
    if table.draft:
        charts.append(_chart("One more draft level, ms, by rows", _draft_lines(table), 1))
    width = len(charts) * (_WIDTH + _LEFT + 24)
    legend = max(len(_pass_lines(table)), len(_draft_lines(table)))
    height = _TOP + _HEIGHT + 50 + 18 * legend + 24
    here = table.fingerprint
    foot = f"{here.model} ({here.quantization}), {here.drafter}, {here.processor}, {here.threads} threads"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'{"".join(charts)}<text x="{_LEFT}" y="{height - 8}">{escape(foot)}</text></svg>\n'
    )


def _pass_lines(table: CostTable) -> list[Line]:
    contexts = sorted({point.context for point in table.verify})
    counts = sorted({point.tokens for point in table.verify})
    return [
        Line(
            f"{'a row for each token' if plain else 'tree of one row'}, context {context:,}",
            [(n, 1e3 * table.verify_s(n, context, n if plain else 1)) for n in counts],
            colour,
            plain,
        )
        for colour, context in enumerate(contexts)
        for plain in (False, True)
    ]


def _draft_lines(table: CostTable) -> list[Line]:
    counts = sorted({point.rows for point in table.draft})
    return [
        Line(f"width {width}", [(n, 1e3 * table.draft_s(n, width)) for n in counts], colour)
        for colour, width in enumerate(sorted({point.width for point in table.draft}))
    ]


def _chart(title: str, lines: Sequence[Line], place: int) -> str:
    """Axes, lines and legend of one chart, the ``place``-th from the left."""
    x_top = max(x for line in lines for x, _ in line.points)
    y_step = round_step(max(y for line in lines for _, y in line.points))
    y_top = y_step * max(1, math.ceil(max(y for line in lines for _, y in line.points) / y_step))
    parts = [f'<text class="t" x="0" y="-16">{escape(title)}</text>']
    for i in range(round(y_top / y_step) + 1):
        y = _HEIGHT - _HEIGHT * i * y_step / y_top
        parts.append(f'<line class="{"g" if i else "a"}" x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{i * y_step:g}</text>')
    for x in (1, *(x_top * share / 4 for share in range(1, 5))):
        parts.append(
            f'<text x="{_WIDTH * x / x_top:.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{x:g}</text>'
        )
    for row, line in enumerate(lines):
        parts += _line(line, row, (_WIDTH / x_top, _HEIGHT / y_top))
    shift = _LEFT + place * (_WIDTH + _LEFT + 24)
    return f'<g transform="translate({shift} {_TOP})">{"".join(parts)}</g>'


def _line(line: Line, row: int, scale: tuple[float, float]) -> list[str]:
    """A line with a dot at each point, and its place in the legend."""
    colour = _COLOURS[line.colour % len(_COLOURS)]
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    at = [(scale[0] * x, _HEIGHT - scale[1] * y) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [f'<polyline class="l" stroke="{colour}"{dash} points="{path}"/>']
    for (x, y), (size, value) in zip(at, line.points, strict=True):
        tip = escape(f"{line.label}: {size:g}, {significant(value)} ms")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{tip}</title></circle>')
    y = _HEIGHT + 38 + 18 * row
    parts.append(f'<line class="l" stroke="{colour}"{dash} x1="0" x2="30" y1="{y}" y2="{y}"/>')
    parts.append(f'<text x="38" y="{y + 4}">{escape(line.label)}</text>')
    return parts


def round_step(top: float) -> float:
    """A round distance of grid lines, so that there are four to ten of them."""
    rough = max(top, 1e-6) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
