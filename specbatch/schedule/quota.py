"""How many verified tokens each owner may use in a run."""

from __future__ import annotations

from collections.abc import Mapping

from specbatch.config import Owner


class Quotas:
    """Counts what the target computes for the answers of owners that have a quota.

    Args:
        owners: Limits by owner.
        used: Tokens of earlier attempts by owner.

    Attributes:
        tokens: Verified tokens by owner, earlier attempts included; updated in place.
    """

    def __init__(self, owners: Mapping[str, Owner], used: Mapping[str, int]) -> None:
        self._limits = {name: owner.quota for name, owner in owners.items() if owner.quota is not None}
        self.tokens = {name: used.get(name, 0) for name in self._limits}

    def spend(self, owner: str | None, tokens: int) -> bool:
        """Count tokens.

        Args:
            owner: Whose row they were for.
            tokens: How many.

        Returns:
            Whether they were the ones that used the quota up.
        """
        if owner is None or owner not in self.tokens:
            return False
        before = self.is_over(owner)
        self.tokens[owner] += tokens
        return self.is_over(owner) and not before

    def is_over(self, owner: str | None) -> bool:
        """Whether nothing is left of an owner's quota."""
        return owner is not None and owner in self.tokens and self.tokens[owner] >= self._limits[owner]
