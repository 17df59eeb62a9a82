"""A power cap: how many tokens a pass may carry so that observed power stays below it.

Tokens per pass are the one thing that the engine can turn down. A smaller allowance first takes from
speculation, then from the rows in flight; pauses between passes do the rest (:class:`Allowance`). It begins
with half a token, so that the cap holds from the start, and grows as far as what was observed permits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

WINDOW_S = 0.5
"""Seconds over which power is observed, and for which an allowance stands."""

_TOO_MUCH, _AIM, _ROOM = 0.97, 0.93, 0.90
"""Shares of the cap: from the first on the allowance shrinks, to where the second is expected; below the last
one there is room."""

_GROWTH, _MEMORY, _FIRST, _LEAST = 1.5, 24.0, 0.5, 0.01
_WORTH_IT = 0.05
"""Share by which an allowance must change to be changed at all."""

Change = Literal["above the cap", "near the cap", "room below the cap"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may do.

    Attributes:
        tokens: Tokens that a pass carries, those that pauses leave out not counted.
    """

    tokens: float

    def rows(self, most: int) -> int:
        """Rows that take part in a step."""
        return max(1, min(most, math.ceil(self.tokens)))

    def drafted(self, rows: int) -> int:
        """Drafted tokens beside the next ones of so many rows."""
        return max(0, int(self.tokens) - rows)

    def prefill(self, most: int, rows: int) -> int:
        """Prompt tokens beside rows that write; a quarter at least, so that prompts get done."""
        return max(1, min(most, max(int(self.tokens) - rows, int(self.tokens) // 4)))

    def pause_s(self, step_s: float, tokens: int) -> float:
        """Seconds without a pass that follow a step whose pass carried so many tokens."""
        return step_s * max(0.0, tokens / self.tokens - 1.0)


class PowerGovernor:
    """Feedback from observed power to the allowance, with a straight line between the two.

    The line ``watts = idle + slope · tokens per pass`` is fitted to the latest windows. The curve of power
    flattens as passes grow (a pass cannot draw more than all arithmetic units do), so that the line promises
    too much power for larger ones, and the cap holds while the allowance grows. It grows by ``_GROWTH`` in
    two windows at most, and never far beyond what is made use of; it shrinks at once, and does neither for
    changes below ``_WORTH_IT``.

    Args:
        cap_w: The cap, watts.
        most: Largest allowance that makes sense, tokens per pass.
    """

    def __init__(self, cap_w: float, most: int) -> None:
        self._cap, self._most = cap_w, float(max(1, most))
        self.allowance = Allowance(_FIRST)
        self._count = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = self._last = 0.0
        self._calm = 0

    def observe(self, watts: float, used: float) -> Change | None:
        """See a window; what became of the allowance and why, or ``None`` when it stays.

        Args:
            watts: Mean power.
            used: Tokens per pass, times the share of the time without pauses.
        """
        self._learn(used, watts)
        now = self.allowance.tokens
        if watts > _TOO_MUCH * self._cap:
            self._calm = 0
            expected = self._tokens_at(_AIM * self._cap, used)
            # Where the line does not help, twice the excess is taken off, since idle power stays.
            cut = used * max(0.3, 1.0 - 2.0 * (watts / (_AIM * self._cap) - 1.0))
            return self._set(
                min(now, expected, cut), "above the cap" if watts > self._cap else "near the cap"
            )
        if watts >= _ROOM * self._cap:
            self._calm = 0
            return None
        self._calm += 1
        if self._calm < 2:
            return None
        grown = min(now * _GROWTH, max(now, used * _GROWTH), self._tokens_at(_AIM * self._cap, used))
        return self._set(max(now, grown), "room below the cap")

    def _set(self, tokens: float, why: Change) -> Change | None:
        tokens = min(max(tokens, _LEAST), self._most)
        if abs(tokens - self.allowance.tokens) < _WORTH_IT * self.allowance.tokens:
            return None
        self.allowance = Allowance(tokens)
        return why

    def _tokens_at(self, watts: float, used: float) -> float:
        """Tokens per pass at which the line reaches a power; never beyond proportion to the last window."""
        last_x, last_y = used, max(1e-9, self._last)
        spread = self._count * self._sum_xx - self._sum_x**2
        slope = (self._count * self._sum_xy - self._sum_x * self._sum_y) / spread if spread > 1e-9 else 0.0
        if slope <= 0.0:
            return last_x * watts / last_y
        # From where we are, so that what the line does not know (the kind of rows) is in it.
        return max(_LEAST, last_x + (watts - last_y) / slope)

    def _learn(self, used: float, watts: float) -> None:
        fade, self._last = 1.0 - 1.0 / _MEMORY, watts
        self._count = fade * self._count + 1.0
        self._sum_x = fade * self._sum_x + used
        self._sum_y = fade * self._sum_y + watts
        self._sum_xx = fade * self._sum_xx + used * used
        self._sum_xy = fade * self._sum_xy + used * watts
