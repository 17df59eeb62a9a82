"""How many tokens a row needs from a step so that its promises hold.

A row with a TPOT SLO of τ seconds per token that has written n tokens since its first one, s seconds ago,
needs ``A = (s + t) / τ - n`` tokens from a step of t seconds; one that must have its remaining r tokens in
l seconds needs ``A = t × r / l`` (AdaServe, Li et al. 2026, section 4). Both are lines in t, and t is only
known once the step has been put together: a :class:`Need` keeps the lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from specbatch.rows import Row

MARGIN = 0.05
"""Share of every allowed time that is kept in reserve."""

Line = tuple[float, float]
"""Tokens needed from a step of no length, and more of them per second."""


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens needed from the next step, one line for each promise.

    Attributes:
        lines: With the margin, and with what the row is behind made up for at once.
        least: Without margin, and with arrears spread over what is left of the row: a row that cannot
            get this much from its steps misses its SLO. ``None``: as ``lines``.
        lost: A promise is broken already, or can be kept by no speed whatever.
    """

    lines: tuple[Line, ...] = ()
    least: tuple[Line, ...] | None = None
    lost: bool = False

    def at(self, step_s: float) -> float:
        """A: tokens needed from a step of this length, the target's own one included; at least 1."""
        return _highest(self.lines, step_s)

    def least_at(self, step_s: float) -> float:
        """Tokens below which steps of this length are not worth a favour; at least 1."""
        return _highest(self.lines if self.least is None else self.least, step_s)


NONE = Need()
"""Of a row without promises."""


def need_of(row: Row, now: float, remaining: int, margin: float = MARGIN) -> Need:
    """What a row in flight needs.

    Args:
        row: Its promises, and what it has written so far.
        now: Seconds on the run clock.
        remaining: Tokens it may still write, at least 1.
        margin: Share of the allowed time that is kept in reserve.
    """
    slo, lines, least = row.prompt.slo, [], []
    if slo.tpot_ms is not None and row.first_token_at is not None:
        tau, elapsed, written = 1e-3 * slo.tpot_ms, now - row.first_token_at, len(row.output) - 1
        left = tau * (written + remaining) - elapsed
        if left <= 0.0:
            return Need(lost=True)
        kept = tau * (1.0 - margin)
        lines.append((elapsed / kept - written, 1.0 / kept))
        least.append((0.0, remaining / left))
    if slo.deadline is not None:
        left = slo.deadline - now
        if left <= 0.0:
            return Need(lost=True)
        lines.append((0.0, remaining / (left * (1.0 - margin))))
        least.append((0.0, remaining / left))
    return Need(tuple(lines), tuple(least)) if lines else NONE


def slack_s(row: Row, now: float, remaining: int, step_s: float, margin: float = MARGIN) -> float:
    """Seconds for which a row may stand still and then keep its promises by plain decoding.

    Args:
        row: Its promises, and what it has written so far.
        now: Seconds on the run clock.
        remaining: Tokens it may still write, at least 1.
        step_s: Seconds of a step, which writes one token of each row.
        margin: Share of the allowed time that is kept in reserve.

    Returns:
        Negative when plain decoding is too slow already; infinite without a promise.
    """
    slo, slack = row.prompt.slo, math.inf
    if slo.tpot_ms is not None and row.first_token_at is not None:
        kept = 1e-3 * slo.tpot_ms * (1.0 - margin)
        slack = kept * len(row.output) - (now - row.first_token_at) - step_s
    if slo.ttft_ms is not None and row.first_token_at is None:
        slack = min(slack, (1.0 - margin) * 1e-3 * slo.ttft_ms + row.prompt.arrival - now - step_s)
    if slo.deadline is not None:
        slack = min(slack, (slo.deadline - now) * (1.0 - margin) - remaining * step_s)
    return slack


def _highest(lines: Iterable[Line], step_s: float) -> float:
    return max([1.0, *(base + slope * step_s for base, slope in lines)])
