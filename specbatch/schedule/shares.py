"""Guaranteed shares of the verified tokens: who has had less than was promised, and goes next.

As long as a tier has rows, its share of every step's tokens is due to it. What it gets above that is held
against it only while rows of other tiers wait, whose places it takes; what others leave is anybody's, so no
token is ever withheld.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


class Shares:
    """Counts tokens by tier.

    Args:
        shares: Tier → share of the tokens, for the tiers that were promised one.

    Attributes:
        entitled: Tier → tokens that were due to it while it had rows.
        achieved: Tier → tokens that it had meanwhile.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._owed = dict.fromkeys(shares, 0.0)
        self._step, self._claimed = 0, sum(shares.values())
        self.entitled = dict.fromkeys(shares, 0.0)
        self.achieved = dict.fromkeys(shares, 0)

    def count(self, tokens: Mapping[str, int], flying: Collection[str], waiting: Collection[str]) -> None:
        """See what a step verified.

        Args:
            tokens: Tier → tokens.
            flying: Tiers with rows in flight.
            waiting: Tiers with rows that wait.
        """
        self._step = total = sum(tokens.values())
        self._claimed = sum(share for tier, share in self._shares.items() if tier in waiting)
        for tier, share in self._shares.items():
            if tier not in flying and tier not in waiting:
                self._owed[tier] = 0.0
                continue
            due, own = share * total, tokens.get(tier, 0)
            self.entitled[tier] += due
            self.achieved[tier] += own
            owed = self._owed[tier] + due - own
            self._owed[tier] = owed if any(other != tier for other in waiting) else max(0.0, owed)

    @property
    def claimed(self) -> float:
        """Share of the tokens that was promised to tiers whose rows wait; before the first step, to all."""
        return self._claimed

    def behind(self) -> list[str]:
        """Tiers that are owed a token or more, the one that is owed most first."""
        owing = [tier for tier, owed in self._owed.items() if owed >= 1.0]
        return sorted(owing, key=lambda tier: -self._owed[tier])

    def rows_due(self, tier: str) -> int:
        """How many rows a tier that is owed tokens needs in flight.

        A token each makes its share of a step; where it is owed more than a step, one more catches up.
        """
        return math.ceil(self._shares[tier] * self._step) + (self._owed[tier] > self._step)
