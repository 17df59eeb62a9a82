"""How much each row speculates: one protocol, and the policies behind it."""

from specbatch.policy.base import Decision, PolicySettings, SpeculationPolicy, StepView, decodes, view_of
from specbatch.policy.calibration import Calibration
from specbatch.policy.costed import Instruments
from specbatch.policy.forest import Drafts
from specbatch.policy.make import counts_with_costs, make_policy, rests_rows

__all__ = [
    "Calibration",
    "Decision",
    "Drafts",
    "Instruments",
    "PolicySettings",
    "SpeculationPolicy",
    "StepView",
    "counts_with_costs",
    "decodes",
    "make_policy",
    "rests_rows",
    "view_of",
]
