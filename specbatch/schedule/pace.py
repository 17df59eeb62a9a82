"""Seconds per token of rows in steps of their own, by measured costs."""

from __future__ import annotations

from dataclasses import dataclass

from specbatch.hardware.cost import Costs

AT_BEST = 0.75
"""Share of the expected time that a row alone may turn out to take. Machines change their speed by as much
within minutes, and a promise is given up for good: better late than for a slow moment's sake."""

AT_WORST = 0.5
"""Share of the drafted tokens that are tried of which a row's drafts can be relied on to be accepted."""

_CHAINS = (1, 2, 4)
"""Lengths of drafts of which the one that suits best counts."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafts bring and cost.

    Attributes:
        share: Of the drafted tokens that are tried, how many are accepted.
        free: Some drafts cost no pass of a draft model.
    """

    share: float
    free: bool


def token_s(costs: Costs, rows: int, context: int, prompts: int, drafting: Drafting | None) -> float:
    """Seconds per token of each of some rows, drafting where that is faster.

    Args:
        costs: Predicted times; with a drafter's where there is drafting that is not free.
        rows: Rows in a step.
        context: Committed tokens of each.
        prompts: Prompt tokens that the step carries besides.
        drafting: ``None``: nothing is drafted.
    """
    quickest = costs.around_s + costs.step_s(rows, context, rows, prompts)
    if drafting is None:
        return quickest
    for chain in _CHAINS:
        seconds = costs.around_s + costs.step_s(rows * (1 + chain), context, rows, prompts)
        seconds += 0.0 if drafting.free else costs.draft_tree_s(rows, 1, chain)
        quickest = min(quickest, seconds / sum(drafting.share**depth for depth in range(chain + 1)))
    return quickest


def has_drafter(costs: Costs) -> bool:
    """Whether costs were measured with a drafter."""
    try:
        costs.draft_tree_s(1, 1, 1)
    except ValueError:  # how a profile says that it was measured without one
        return False
    return True
