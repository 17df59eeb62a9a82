"""What becomes of a row whose promises cannot be kept: the rule of its tier, to the letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specbatch.config import Tier
from specbatch.config.values import Overload
from specbatch.errors import RowFault
from specbatch.rows import Row
from specbatch.schedule.foresight import Broken
from specbatch.slo import Slo, earlier

_WORDS = {
    "deadline": "its deadline",
    "ttft_ms": "its time to the first token",
    "tpot_ms": "its time per token",
}
_REASONS = {
    "hopeless": "even alone on this machine",
    "overload": "beside the rows before it",
    "waited": "since it waited too long",
    "slow": "since it was slower than expected",
}


class OverloadRules:
    """The tiers' rules.

    Args:
        tiers: By name.
    """

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers

    def apply(self, row: Row, broken: Broken) -> Overload:
        """Do what the row's tier says; where it says ``reject``, the caller ends the row.

        Args:
            row: Its standing, and where it is degraded its promises, change.
            broken: Promises that cannot be kept.

        Returns:
            What was done: the rule, or ``late`` where there is no tier to degrade to.
        """
        rule = self._tiers[row.tier].on_overload
        standing = row.standing
        standing.miss = standing.miss or broken.miss
        if rule == "degrade" and (below := self._below(row.tier)) is not None:
            standing.promised, standing.tier = row.promised, below
            standing.lost = frozenset()
            slo = loosened(row.prompt.slo, self._tiers[below], row.prompt.arrival)
            row.prompt = replace(row.prompt, slo=slo)
            return "degrade"
        standing.promised = row.promised
        standing.lost |= broken.lost
        # What is lost is nobody's concern any more: not the policy's either.
        row.prompt = replace(row.prompt, slo=replace(row.prompt.slo, **dict.fromkeys(broken.lost)))
        return "reject" if rule == "reject" else "late"

    def _below(self, name: str) -> str | None:
        """The next tier: the most urgent of those that are less urgent."""
        priority = self._tiers[name].priority
        below = {other: tier.priority for other, tier in self._tiers.items() if tier.priority > priority}
        return min(below, key=below.__getitem__, default=None)


def loosened(slo: Slo, tier: Tier, arrival: float) -> Slo:
    """Promises of another tier where that promises less; nothing is promised that was not before.

    Args:
        slo: What is promised now.
        tier: The other tier.
        arrival: Of the row, seconds on the run clock.
    """
    deadline = None if tier.deadline_s is None else arrival + tier.deadline_s
    return Slo(
        earlier(_looser(slo.deadline, deadline), slo.until),
        _looser(slo.tpot_ms, tier.tpot_slo_ms),
        _looser(slo.ttft_ms, tier.ttft_slo_ms),
        slo.until,
    )


def overloaded(broken: Broken) -> RowFault:
    """Why a row ends ``rejected`` under ``on_overload = "reject"``."""
    names = " and ".join(_WORDS[name] for name in sorted(broken.lost))
    return RowFault(
        "overloaded",
        f"{names} cannot be kept {_REASONS[broken.miss]} (on_overload = reject); "
        "give it more time, or use late or degrade",
    )


def _looser(own: float | None, other: float | None) -> float | None:
    return None if own is None or other is None else max(own, other)
