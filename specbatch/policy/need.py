"""How many tokens a row needs from a step so that its promises hold.

A row with a TPOT SLO of τ seconds per token that has written n tokens since its first one, s seconds ago,
needs ``A = (s + t) / τ - n`` tokens from a step of t seconds; one that must have its remaining r tokens in
l seconds needs ``A = t × r / l`` (AdaServe, Li et al. 2026, section 4). Both are lines in t, and t is only
known once the step has been put together: a :class:`Need` keeps the lines.

The first formula makes up for all arrears at once. Where they are large no step can do that, and asking for
it would cost everybody else dearly: a row may take half of its remaining tokens for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import Row

MARGIN = 0.06
"""Share of every allowed time that is kept in reserve."""

LUCK_MARGIN = 0.25
"""The same of rows that are promised more than plain decoding gives a row that is alone: what drafts have
brought ahead of time may be all they bring for a while."""

Floats = NDArray[np.float64]

Line = tuple[float, float]
"""Tokens needed from a step of no length, and more of them per second."""

_NOTHING: Line = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens needed from the next step, one line for each promise.

    Attributes:
        lines: With the margin, and with what the row is behind made up for at once.
        spread: The same with arrears made up for over some steps; of each pair the lower one counts.
            ``None``: as ``lines``.
        least: Without margin, and with arrears spread over all that is left of the row: one that cannot
            get this much from its steps breaks its promise. ``None``: as ``lines``.
        lost: A promise is broken already, or can be kept by no speed whatever.
    """

    lines: tuple[Line, ...] = ()
    spread: tuple[Line, ...] | None = None
    least: tuple[Line, ...] | None = None
    lost: bool = False

    def at(self, step_s: float) -> float:
        """A: tokens needed from a step of this length, the target's own one included; at least 1."""
        return float(Needs([self]).at(step_s)[0])

    def least_at(self, step_s: float) -> float:
        """Tokens below which steps of this length are not worth a favour; at least 1."""
        return float(Needs([self]).least_at(step_s)[0])


NONE = Need()
"""Of a row without promises."""


class Needs:
    """The needs of R rows as arrays.

    Args:
        needs: R of them, at least one.

    Attributes:
        lost: Rows that break a promise whatever happens, bool ``[R]``.
        asking: All other rows that have one, bool ``[R]``.
        none: No row has a promise.
    """

    def __init__(self, needs: Sequence[Need]) -> None:
        lines = [need.lines for need in needs]
        self.lost: NDArray[np.bool_] = np.array([need.lost for need in needs])
        self.asking: NDArray[np.bool_] = np.array([bool(each) for each in lines])
        self.none = not (self.asking.any() or self.lost.any())
        if self.none:
            return
        width = max(map(len, lines))
        self._lines = _table(lines, width)
        self._spread = _table([n.lines if n.spread is None else n.spread for n in needs], width)
        least = [n.lines if n.least is None else n.least for n in needs]
        self._least = _table(least, max(map(len, least)))

    def at(self, step_s: float | Floats) -> Floats:
        """A of each row; float64 ``[R]``, or ``[..., R]`` for step lengths ``[..., 1, 1]``."""
        if self.none:
            return np.ones((*np.shape(step_s)[:-2], len(self.lost)))
        return _highest(np.minimum(_along(self._lines, step_s), _along(self._spread, step_s)))

    def least_at(self, step_s: float | Floats) -> Floats:
        """Least tokens of each row, likewise."""
        return (
            np.ones((*np.shape(step_s)[:-2], len(self.lost)))
            if self.none
            else _highest(_along(self._least, step_s))
        )

    def longest(self, tokens: Floats) -> Floats:
        """Seconds up to which steps of so many tokens are enough, float64 ``[R]``; infinite for none."""
        if self.none:
            return np.full(len(self.lost), math.inf)
        both = np.maximum(_reached(self._lines, tokens), _reached(self._spread, tokens))
        longest: Floats = np.min(both, axis=1, initial=math.inf)
        return longest


def promises(row: Row) -> bool:
    """Whether how fast a row writes may break a promise."""
    return row.prompt.slo.tpot_ms is not None or row.prompt.slo.deadline is not None


def need_of(row: Row, now: float, remaining: int, margin: float = MARGIN) -> Need:
    """What a row in flight needs.

    Args:
        row: Its promises, and what it has written so far.
        now: Seconds on the run clock.
        remaining: Tokens it may still write, at least 1.
        margin: Share of the allowed time that is kept in reserve.
    """
    slo = row.prompt.slo
    lines: list[Line] = []
    spread: list[Line] = []
    slowest = math.inf  # seconds per token that break no promise
    if slo.tpot_ms is not None and row.first_token_at is not None:
        tau, elapsed, written = 1e-3 * slo.tpot_ms, now - row.first_token_at, len(row.output) - 1
        slowest = (tau * (written + remaining) - elapsed) / remaining
        kept = tau * (1.0 - margin)
        soon = (remaining + 1) // 2
        pace = (kept * (written + soon) - elapsed) / soon
        lines.append((elapsed / kept - written, 1.0 / kept))
        spread.append((0.0, 1.0 / pace if pace > 0.0 else _over(slowest)))
    if slo.deadline is not None:
        left = (slo.deadline - now) / remaining
        slowest = min(slowest, left)
        lines.append((0.0, _over(left * (1.0 - margin))))
        spread.append(lines[-1])
    if slowest <= 0.0:
        return Need(lost=True)
    if not lines:
        return NONE
    return Need(tuple(lines), tuple(spread), ((0.0, 1.0 / slowest),))


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


def _over(seconds: float) -> float:
    return 1.0 / seconds if seconds > 0.0 else 0.0


def _table(rows: Sequence[tuple[Line, ...]], width: int) -> tuple[Floats, Floats]:
    """Bases and slopes, float64 ``[R, width]``; what is missing asks for nothing."""
    padded = [(*lines, *[_NOTHING] * (width - len(lines))) for lines in rows]
    both = np.array(padded, dtype=np.float64).reshape(len(rows), width, 2)
    return both[:, :, 0], both[:, :, 1]


def _along(lines: tuple[Floats, Floats], step_s: float | Floats) -> Floats:
    bases, slopes = lines
    tokens: Floats = bases + slopes * step_s
    return tokens


def _highest(tokens: Floats) -> Floats:
    """Of each row's lines the highest; at least 1."""
    highest: Floats = np.max(tokens, axis=-1, initial=1.0)
    return highest


def _reached(lines: tuple[Floats, Floats], tokens: Floats) -> Floats:
    """Where each line comes to the row's number of tokens; flat ones never or at once."""
    bases, slopes = lines
    rising, left = slopes > 0.0, tokens[:, None] - bases
    flat = np.where(left >= 0.0, math.inf, 0.0)
    reached: Floats = np.where(rising, left / np.where(rising, slopes, 1.0), flat)
    return reached
