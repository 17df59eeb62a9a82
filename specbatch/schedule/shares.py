"""Guaranteed shares of the verified tokens: who has had less than was promised, and goes next.

As long as a tier has rows, its share of every step's tokens is due to it. What it gets above that is
nobody's loss and is not held against it; what others leave is anybody's, so no token is ever withheld.
"""

from __future__ import annotations

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
        self.entitled = dict.fromkeys(shares, 0.0)
        self.achieved = dict.fromkeys(shares, 0)

    def count(self, tokens: Mapping[str, int], active: Collection[str]) -> None:
        """See what a step verified.

        Args:
            tokens: Tier → tokens.
            active: Tiers with rows in flight or waiting.
        """
        total = sum(tokens.values())
        for tier, share in self._shares.items():
            if tier not in active:
                self._owed[tier] = 0.0
                continue
            due, own = share * total, tokens.get(tier, 0)
            self.entitled[tier] += due
            self.achieved[tier] += own
            self._owed[tier] = max(0.0, self._owed[tier] + due - own)

    def behind(self) -> list[str]:
        """Tiers that are owed a token or more, the one that is owed most first."""
        owing = [tier for tier, owed in self._owed.items() if owed >= 1.0]
        return sorted(owing, key=lambda tier: -self._owed[tier])
