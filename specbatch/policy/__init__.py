"""How much each row speculates: one protocol, and the policies behind it."""

from specbatch.policy.base import PolicySettings, SpeculationPolicy
from specbatch.policy.make import make_policy

__all__ = ["PolicySettings", "SpeculationPolicy", "make_policy"]
