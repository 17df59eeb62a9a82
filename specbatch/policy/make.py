"""From settings to a policy."""

from __future__ import annotations

from specbatch.draft.base import TreeShape
from specbatch.errors import ConfigError
from specbatch.policy.base import PolicySettings, SpeculationPolicy
from specbatch.policy.eagle import EaglePolicy
from specbatch.policy.fixed import FixedPolicy
from specbatch.policy.off import OffPolicy


def make_policy(settings: PolicySettings) -> SpeculationPolicy:
    """The policy that the settings name.

    Raises:
        ConfigError: There is no such policy, or its γ is not a positive number.
    """
    name, colon, count = settings.policy.partition(":")
    if name == "fixed":
        gamma = count if colon else str(settings.gamma)
        if not (gamma.isascii() and gamma.isdigit() and int(gamma) >= 1):
            raise ConfigError(
                f"policy '{settings.policy}': '{gamma}' is not a number of tokens",
                "give a chain of at least one token, for example fixed:4",
            )
        return FixedPolicy(int(gamma))
    if settings.policy == "eagle":
        return EaglePolicy(TreeShape(settings.tree_levels, settings.tree_width, settings.tree_nodes))
    if settings.policy == "off":
        return OffPolicy()
    raise ConfigError(f"unknown policy '{settings.policy}'", "available: off, fixed, fixed:N, eagle")
