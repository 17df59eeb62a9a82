"""What a step could draft, and what each choice is likely to bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbatch.draft.base import TreeShape
from specbatch.policy.rest import Share
from specbatch.policy.selection import Selection

MIN_GAIN = 0.03
"""Share by which drafting must be expected to raise tokens per second before it is begun."""

_RELIEF = 0.02
"""Share of their needs by which rows' prospects must improve before anything changes for them."""


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
        lacking: Shares of what rows need that they would lack, summed; 1 for each without hope.
        rate: Expected tokens per second.
        promised: Rows with promises.
        share: What of the plan would be done; ``None``: all.
    """

    choice: Choice
    selection: Selection
    lacking: float
    rate: float
    promised: int
    share: Share | None = None

    @classmethod
    def of(cls, choice: Choice, selection: Selection, promised: int) -> Prospect:
        """With everybody in the step."""
        lacking = (1.0 - selection.expected / selection.needed)[selection.short]
        total = float(lacking.sum()) + int(selection.hopeless.sum())
        return cls(choice, selection, total, selection.rate, promised)

    def with_share(self, share: Share) -> Prospect:
        """With some sitting out."""
        return replace(self, lacking=share.lacking, rate=share.rate, share=share)


def decide(plain: Prospect, others: Sequence[Prospect], current: Choice) -> Prospect:
    """Take the best choice, and change it only for a reason.

    Promises come first, tokens per second decide among equals. A choice other than nothing must raise
    them by ``MIN_GAIN``; the present one stays while no other is better by as much.

    Args:
        plain: Drafting nothing.
        others: All other choices.
        current: The present choice.
    """
    relief = _RELIEF * max(1, plain.promised)
    worth = [
        each
        for each in others
        if each.lacking < plain.lacking - relief
        or (each.lacking <= plain.lacking + relief and each.rate >= plain.rate * (1.0 + MIN_GAIN))
    ]
    best = plain
    for each in worth:
        if each.lacking < best.lacking - relief or (
            each.lacking <= best.lacking + relief and each.rate > best.rate
        ):
            best = each
    for each in (plain, *others):
        stays = each.lacking <= best.lacking + relief
        if each.choice == current and stays and each.rate * (1.0 + MIN_GAIN) >= best.rate:
            return each
    return best
