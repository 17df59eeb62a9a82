"""Pieces of drawings: axes, legends, and the frame that says in words what is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from specbatch.report.profile_plot import round_step
from specbatch.report.runs.html.style import SERIES

WIDTH = 360
"""Of every drawing: on a telephone, a unit is about a pixel and letters keep their size."""

LEFT, RIGHT, TOP = 44, 8, 26
_DASHES = ("", "7 3", "2 2", "9 3 2 3", "4 4", "1 3")
_LETTER = 6.4


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places along an axis.

    Attributes:
        low: Value at ``start``.
        high: Value at ``end``.
        start: Place.
        end: Place.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Place of a value; values outside stay at the ends."""
        span = self.high - self.low or 1.0
        return self.start + (self.end - self.start) * min(1.0, max(0.0, (value - self.low) / span))

    def ticks(self, most: int = 6) -> list[float]:
        """Round values along it."""
        step = round_step(self.high - self.low)
        while (self.high - self.low) / step > most:
            step *= 2
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def colour(series: int) -> int:
    """Number of a series' colour."""
    return series % SERIES


def dash(series: int) -> str:
    """Attribute of a series' dashes, so that lines differ not only by colour."""
    pattern = _DASHES[series % len(_DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    """Words at a place."""
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A box; the tip is shown where a pointer rests."""
    told = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" '
        f'class="{kind}">{told}</rect>'
    )


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def axes(x: Scale, y: Scale, x_unit: str, *, percent: bool = False) -> list[str]:
    """Grid lines with numbers: ``y`` up the left side, ``x`` along the bottom."""
    parts = []
    for value in y.ticks(5):
        place = y.at(value)
        parts.append(line((x.start, place), (x.end, place), "axis" if value == y.low else "grid"))
        shown = f"{value:.0%}" if percent else short(value)
        parts.append(text(x.start - 5, place + 4, shown, "end", "dim"))
    ticks = x.ticks()
    for value in ticks:
        parts.append(text(x.at(value), y.start + 15, short(value), "middle", "dim"))
    parts.append(text(x.end, y.start + 29, x_unit, "end", "dim"))
    return parts


def short(value: float) -> str:
    """A number for an axis: ``1200`` → ``1.2k``."""
    for power, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= power:
            return f"{value / (1e3 if sign == 'k' else power):g}{sign}"
    return f"{value:g}"


def legend(names: Sequence[str], top: float, *, lines: bool) -> tuple[list[str], float]:
    """Names of series with their colours, in rows as wide as the drawing.

    Returns:
        Pieces, and where the next thing may begin.
    """
    parts, x = [], 4.0
    y = top + 12
    for series, name in enumerate(names):
        width = 26 + _LETTER * len(name)
        if x + width > WIDTH and x > 4:
            x, y = 4.0, y + 17
        if lines:
            look = f'class="curve c{colour(series)}"{dash(series)}'
            parts.append(f'<path d="M{x:.1f} {y - 4:.1f}h18" {look}/>')
        else:
            parts.append(rect(x + 4, y - 10, 11, 11, f"f{colour(series)}"))
        parts.append(text(x + 22, y, name))
        x += width + 10
    return parts, y + 8


def drawing(identity: str, title: str, told: str, height: float, parts: Sequence[str]) -> str:
    """A whole drawing.

    Args:
        identity: Unique on its page.
        title: What it shows; drawn, and read aloud.
        told: What can be seen in it, for those who cannot.
        height: Of the drawing; it is ``WIDTH`` wide.
        parts: Its pieces.
    """
    # Made of a tier's name, maybe; ids are referred to in lists that spaces separate.
    identity = "".join(sign if sign.isalnum() or sign == "-" else f"_{ord(sign):x}" for sign in identity)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{identity}-t {identity}-d">'
        f'<title id="{identity}-t">{escape(title)}</title><desc id="{identity}-d">{escape(told)}</desc>'
        f"{text(0, 14, title, kind='t')}{''.join(parts)}</svg>"
    )
