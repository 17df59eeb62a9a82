"""What a step could draft, and what each choice is likely to bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbatch.draft.base import TreeShape
from specbatch.policy.selection import Selection

MIN_GAIN = 0.03
"""Share by which drafting must be expected to raise tokens per second before it is begun."""

_RELIEF = 0.02
"""Share of a row's need by which its prospects must improve before anything changes for it."""


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


def menu(largest: TreeShape) -> tuple[Choice, ...]:
    """Everything that is weighed against drafting nothing."""
    depths = sorted({min(levels, largest.levels) for levels in (2, 4, largest.levels)})
    shapes = [TreeShape(levels, 1, levels) for levels in depths]
    if largest.width > 1:
        shapes += [TreeShape(levels, min(4, largest.width), largest.nodes) for levels in depths[1:]]
    return tuple(Choice(shape, urgent) for urgent in (False, True) for shape in shapes)


@dataclass(frozen=True, slots=True)
class Prospect:
    """A choice and what is expected of it.

    Attributes:
        choice: The choice.
        selection: What would be verified.
        lacking: Shares of what rows with hope need that they would lack, summed.
    """

    choice: Choice
    selection: Selection
    lacking: float

    @classmethod
    def of(cls, choice: Choice, selection: Selection) -> Prospect:
        """Sum up."""
        lacking = (1.0 - selection.expected / selection.needed)[selection.short]
        return cls(choice, selection, float(lacking.sum()))


def decide(plain: Prospect, others: Sequence[Prospect], current: Choice) -> Prospect:
    """Take the best choice, and change it only for a reason.

    Promises come first, tokens per second decide among equals. A choice other than nothing must raise
    them by ``MIN_GAIN``; the present one stays while no other is better by as much.

    Args:
        plain: Drafting nothing.
        others: All other choices.
        current: The present choice.
    """
    worth = [
        each
        for each in others
        if each.lacking < plain.lacking - _RELIEF
        or (
            each.lacking <= plain.lacking + _RELIEF
            and each.selection.rate >= plain.selection.rate * (1.0 + MIN_GAIN)
        )
    ]
    best = plain
    for each in worth:
        if each.lacking < best.lacking - _RELIEF or (
            each.lacking <= best.lacking + _RELIEF and each.selection.rate > best.selection.rate
        ):
            best = each
    for each in (plain, *others):
        stays = each.lacking <= best.lacking + _RELIEF
        if each.choice == current and stays and each.selection.rate * (1.0 + MIN_GAIN) >= best.selection.rate:
            return each
    return best
