"""From settings to a policy."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.errors import ConfigError
from specbatch.policy.adaserve import AdaservePolicy
from specbatch.policy.auto import AutoPolicy
from specbatch.policy.base import PolicySettings, SpeculationPolicy
from specbatch.policy.calibration import Calibration
from specbatch.policy.costed import CostedPolicy, Instruments
from specbatch.policy.dspark import DsparkPolicy
from specbatch.policy.eagle import EaglePolicy
from specbatch.policy.fixed import FixedPolicy
from specbatch.policy.off import OffPolicy
from specbatch.policy.priority import PriorityPolicy
from specbatch.policy.resting import RestingPolicy

_COSTED: dict[str, type[CostedPolicy]] = {
    each.name: each for each in (DsparkPolicy, AdaservePolicy, AutoPolicy)
}
_WIDEST, _LARGEST = 4, 24
"""Wider and larger trees bring a policy that weighs every node nothing but work."""


def counts_with_costs(policy: str) -> bool:
    """Whether a policy decides by what steps cost on this machine, so that it needs a profile."""
    return policy in _COSTED or policy == RestingPolicy.name


def rests_rows(policy: str) -> bool:
    """Whether a policy has rows with time sit out for others, so that these need not fear company."""
    return policy in (AutoPolicy.name, RestingPolicy.name)


def make_policy(settings: PolicySettings, instruments: Instruments | None = None) -> SpeculationPolicy:
    """The policy that the settings name.

    Args:
        settings: Name and bounds.
        instruments: What it measures with; ``None``: nothing, where only its bounds matter.

    Raises:
        ConfigError: There is no such policy, or its γ is not a positive number.
    """
    tools = Instruments(Calibration()) if instruments is None else instruments
    name, colon, count = settings.policy.partition(":")
    if name == "fixed":
        gamma = count if colon else str(settings.gamma)
        if not (gamma.isascii() and gamma.isdigit() and int(gamma) >= 1):
            raise ConfigError(
                f"policy '{settings.policy}': '{gamma}' is not a number of tokens",
                "give a chain of at least one token, for example fixed:4",
            )
        return FixedPolicy(int(gamma))
    levels, width, nodes = settings.tree_levels, settings.tree_width, settings.tree_nodes
    if settings.policy in _COSTED:
        largest = TreeShape(levels, min(width, _WIDEST), min(nodes, _LARGEST))
        return _COSTED[settings.policy](largest, tools)
    if settings.policy == "eagle":
        return EaglePolicy(TreeShape(levels, width, nodes))
    if settings.policy == "off":
        return OffPolicy()
    if settings.policy == PriorityPolicy.name:
        return PriorityPolicy(settings.tiers)
    if settings.policy == RestingPolicy.name:
        return RestingPolicy(tools)
    known = ("off", "priority", RestingPolicy.name, "fixed", "fixed:N", "eagle", *_COSTED)
    raise ConfigError(f"unknown policy '{settings.policy}'", f"available: {', '.join(known)}")
