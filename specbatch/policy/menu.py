"""What a step could draft, and what each choice is likely to bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbatch.draft.base import TreeShape
from specbatch.policy.candidates import Selection

MIN_GAIN = 0.03
"""Share by which drafting must be expected to raise tokens per second before it is begun."""

_RELIEF = 0.08
"""Share of what rows in a hurry need by which their prospects must improve before anything changes for them.

What they lack is made up for by later steps, as long as it is little.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to draft in a step.

    Attributes:
        shape: Trees of the rows that use the draft model; ``None`` for none.
        urgent_only: Those are only the rows that need more than one token; else all.
    """

    shape: TreeShape | None = None
    urgent_only: bool = False

    @property
    def mode(self) -> str:
        """``off``, ``chain`` or ``tree``."""
        if self.shape is None:
            return "off"
        return "chain" if self.shape.width == 1 else "tree"


NOTHING = Choice()
"""No pass of a draft model."""


def menu(largest: TreeShape, free_levels: int = 0) -> tuple[Choice, ...]:
    """Everything that is weighed against drafting nothing.

    Args:
        largest: Bounds that no row's tree exceeds.
        free_levels: Depth of chains that take no pass of a draft model; 0 where there are none.
    """
    levels = sorted({min(depth, largest.levels) for depth in (2, 4, largest.levels)})
    chains = [TreeShape(depth, 1, depth, free_levels=free_levels) for depth in levels]
    middle = levels[len(levels) // 2]
    trees = [TreeShape(middle, largest.width, largest.nodes)] if largest.width > 1 else []
    urgent = [TreeShape(1, 1, 1, free_levels=free_levels), *chains, *trees]
    return (*(Choice(shape) for shape in (*chains, *trees)), *(Choice(shape, True) for shape in urgent))


@dataclass(frozen=True, slots=True)
class Prospect:
    """A choice and what is expected of it.

    Attributes:
        choice: The choice.
        selection: What would be verified.
        lacking: Shares of what rows need that they would lack, summed; 1 for each without hope.
    """

    choice: Choice
    selection: Selection
    lacking: float

    @classmethod
    def of(cls, choice: Choice, selection: Selection) -> Prospect:
        """Sum up."""
        lacking = (1.0 - selection.expected / selection.needed)[selection.short]
        return cls(choice, selection, float(lacking.sum()) + int(selection.hopeless.sum()))

    def without(self, given_up: int) -> Prospect:
        """The same, with so many more rows that break a promise."""
        return replace(self, lacking=self.lacking + given_up)


def relief_of(hurried: int) -> float:
    """What so many rows in a hurry may lack before drafting for their sake alone is worth a look."""
    return _RELIEF * max(1, hurried)


def decide(plain: Prospect, others: Sequence[Prospect], current: Choice, hurried: int = 0) -> Prospect:
    """Take the best choice, and change it only for a reason.

    Promises come first, tokens per second decide among equals. A choice other than nothing must raise
    them by ``MIN_GAIN``; the present one stays while no other is better by as much, and nothing is no better.

    Args:
        plain: Drafting nothing.
        others: All other choices.
        current: The present choice.
        hurried: Rows that promises are broken to if nothing is done for them.
    """
    relief = relief_of(hurried)
    worth = [
        each
        for each in others
        if each.lacking < plain.lacking - relief
        or (
            each.lacking <= plain.lacking + relief
            and each.selection.rate >= plain.selection.rate * (1.0 + MIN_GAIN)
        )
    ]
    best = plain
    for each in worth:
        if each.lacking < best.lacking - relief or (
            each.lacking <= best.lacking + relief and each.selection.rate > best.selection.rate
        ):
            best = each
    for each in (plain, *others):
        kept = each.lacking <= best.lacking + relief
        pays = each.selection.rate >= plain.selection.rate or each.lacking < plain.lacking - relief
        near = each.selection.rate * (1.0 + MIN_GAIN) >= best.selection.rate
        if each.choice == current and kept and pays and near:
            return each
    return best
