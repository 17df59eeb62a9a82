"""Chains that end where they have become unlikely: how deep a row drafts is decided while it does.

Another level is worth its pass, and another token its place in the target's pass, only behind a path that
is likely enough (the confidence-scheduled length of DSpark). A drafter stops there by itself; here is which
chains may, and how deep they get, which is what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbatch.draft.base import TreeShape
from specbatch.policy.base import bounded
from specbatch.policy.need import promises
from specbatch.rows import Row
from specbatch.tree import TokenTree

LEAST_PATH = 0.3
"""Probability of a path, as the drafter says, behind which a chain ends. Of drafts of the default head for
code, questions and everyday rows most tokens per second come with values between 0.2 and 0.4."""

DEEP = 4
"""Levels of the shortest chain that may end early."""

_PRIOR_SHARE = 0.5
"""Of the levels behind the first that are drafted, before anything was seen."""

_MEMORY = 30.0


class Stopping:
    """Which chains may end early, and how deep they got lately.

    Args:
        most: Levels that no chain exceeds.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stopped: dict[TreeShape, TreeShape] = {}
        self._made: dict[int, float] = {}  # levels asked for → mean of those that were drafted

    def of(self, shape: TreeShape, row: Row) -> TreeShape | None:
        """A shape within a row's own bounds, as it is asked for; ``None`` where the row may not draft.

        A chain of a greedy row without promises may end early, and therefore begins as a deep one: where
        it does get deep, that is worth it. What promises need is not given up for speed, and a sampled row
        takes unlikely tokens, too: drafter and target share their noise.
        """
        greedy = row.prompt.params.temperature == 0.0
        if shape.free or shape.width > 1 or not greedy or promises(row):
            return bounded(shape, row)
        levels = max(shape.levels, min(DEEP, self._most))
        own = bounded(replace(shape, levels=levels, nodes=levels), row)
        if own is None or own.levels == 1:
            return own
        if own not in self._stopped:
            self._stopped[own] = replace(own, least=LEAST_PATH)
        return self._stopped[own]

    def levels(self, shape: TreeShape) -> float:
        """Levels that are drafted for a shape, on average."""
        if not shape.least:
            return shape.levels
        return self._made.get(shape.levels, 1.0 + _PRIOR_SHARE * (shape.levels - 1))

    def learn(self, shapes: Sequence[TreeShape], trees: Sequence[TokenTree]) -> None:
        """See how deep the chains of a step got: together, as deep as the deepest of them.

        Levels beyond those that were asked for took no pass.
        """
        deepest: dict[int, int] = {}
        for shape, tree in zip(shapes, trees, strict=True):
            if shape.least and tree.size:
                made = min(tree.size, shape.levels)
                deepest[shape.levels] = max(deepest.get(shape.levels, 0), made)
        for asked, made in deepest.items():
            before = self.levels(TreeShape(asked, 1, asked, least=LEAST_PATH))
            self._made[asked] = before + (made - before) / _MEMORY
