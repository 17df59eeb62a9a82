"""What drafts are likely to bring before they are made: averages of those that were.

Whether drafting pays has to be known before anything is drafted. For each kind of draft the calibrated
acceptance of the children along the likeliest path is averaged by depth and rank; a tree of any shape is
put together from these numbers, and scaled for each row by how its own drafts compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.policy.forest import Drafts, Floats, Integers
from specbatch.rows import Row

FREE, FULL = 0, 1
"""Kinds of drafts: those that cost no pass of a draft model, and all others."""

_DEPTHS, _RANKS = 8, 4
_PRIOR = (np.array([0.15, 0.02, 0.01, 0.0]), np.array([0.45, 0.12, 0.05, 0.03]))
_PRIOR_TREES, _MEMORY = 4.0, 50.0
_ROW_PRIOR, _ROW_MEMORY = 3.0, 8.0


class Forecast:
    """Acceptance to be expected of drafts; a few hundred numbers and a few for each row.

    Attributes:
        total: Full drafts that were ever seen.
    """

    def __init__(self) -> None:
        self.total = 0
        self._trees = np.zeros((2, _DEPTHS))
        self._sums = np.zeros((2, _DEPTHS, _RANKS))
        self._rows: dict[Row, Floats] = {}  # per kind: drafts, acceptance of their first tokens
        self._tables: dict[int, Floats] = {}
        self._shapes: dict[tuple[int, TreeShape], tuple[Floats, Integers]] = {}

    @property
    def seen(self) -> float:
        """Full drafts that were seen, as far as they are remembered."""
        return float(self._trees[FULL, 0])

    def observe(self, kind: int, drafts: Drafts, conditional: Floats, levels: Sequence[int]) -> None:
        """See what was drafted.

        Args:
            kind: ``FREE`` or ``FULL``.
            drafts: T trees.
            conditional: Calibrated acceptance of each node given its parent's, float64 ``[n]``.
            levels: Depth that was asked for, T of them; trees that end before promise nothing there, and
                what goes deeper, because it was free, is not looked at.
        """
        forest, asked = drafts.forest, np.array(levels)
        on_path = forest.depths == 0
        for depth in range(1, min(_DEPTHS, int(asked.max())) + 1):
            below = (forest.depths == depth) & on_path[forest.parents] & (asked[forest.owners] >= depth)
            ranks = np.minimum(forest.ranks[below], _RANKS - 1)
            self._sums[kind, depth - 1] += np.bincount(ranks, conditional[below], minlength=_RANKS)
            tops = on_path & (forest.depths == depth - 1)
            self._trees[kind, depth - 1] += (asked[forest.owners[tops]] >= depth).sum()
            on_path |= below & (forest.ranks == 0)
        self._count(kind, len(drafts.rows))
        self._fade(kind)
        first = (forest.depths == 1) & (forest.ranks == 0)
        acceptance = np.bincount(forest.owners[first], conditional[first], minlength=len(drafts.rows))
        self._observe_rows(kind, drafts.rows, acceptance.tolist())

    def observe_nothing(self, kind: int, rows: Sequence[Row]) -> None:
        """See that nothing was proposed to some rows: as :meth:`observe` does with roots alone.

        Args:
            kind: ``FREE`` or ``FULL``.
            rows: The rows.
        """
        self._trees[kind, 0] += len(rows)
        self._count(kind, len(rows))
        self._fade(kind)
        self._observe_rows(kind, rows, [0.0] * len(rows))

    def own(self, row: Row) -> float:
        """Acceptance of first tokens of a row's own drafts lately, of the better kind; 0 for none."""
        record = self._rows.get(row)
        if record is None:
            return 0.0
        seen, accepted = record.T
        return float(np.max(accepted / np.maximum(seen, 1.0)))

    def table(self, shapes: Sequence[TreeShape | None], rows: Sequence[Row]) -> Floats:
        """For each row the probabilities of paths that a draft is likely to have.

        Args:
            shapes: What each row would be asked for, R of them; ``None`` for nothing.
            rows: The rows.

        Returns:
            Nodes but the root by falling probability, float64 ``[R, C]``; -1 behind the last one.
        """
        groups: dict[TreeShape, list[int]] = {}
        for i, shape in enumerate(shapes):
            if shape is not None:
                groups.setdefault(shape, []).append(i)
        trees = {shape: self._tree(FREE if shape.free else FULL, shape) for shape in groups}
        table = np.full((len(rows), max([0, *(len(f) for f, _ in trees.values())])), -1.0)
        for shape, members in groups.items():
            f, depths = trees[shape]
            ratios = np.array([self._ratio(FREE if shape.free else FULL, rows[i]) for i in members])
            table[members, : len(f)] = np.minimum(1.0, f * ratios[:, None] ** depths)
        return table

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self._rows.pop(row, None)

    def _count(self, kind: int, drafts: int) -> None:
        if kind == FULL:
            self.total += drafts

    def _fade(self, kind: int) -> None:
        """Forget the oldest of it, and what was derived."""
        faded = np.minimum(1.0, _MEMORY / np.maximum(self._trees[kind], 1.0))
        self._trees[kind] *= faded
        self._sums[kind] *= faded[:, None]
        self._tables.pop(kind, None)
        self._shapes.clear()

    def _observe_rows(self, kind: int, rows: Sequence[Row], accepted: Sequence[float]) -> None:
        """Count a draft of each row, and the acceptance of its first token."""
        for row, value in zip(rows, accepted, strict=True):
            record = self._rows.setdefault(row, np.zeros((2, 2)))[kind]
            record *= min(1.0, (_ROW_MEMORY - 1.0) / max(record[0], 1.0))
            record += (1.0, value)

    def _ratio(self, kind: int, row: Row) -> float:
        """The row's own first tokens against everybody's."""
        record = self._rows.get(row)
        if record is None or not record[kind, 0]:
            return 1.0
        usual = float(self._table(kind)[0, 0])
        drafts, accepted = record[kind].tolist()
        own: float = (accepted + _ROW_PRIOR * usual) / (drafts + _ROW_PRIOR)
        return own / usual

    def _table(self, kind: int) -> Floats:
        """Acceptance by depth and rank, float64 ``[depths, ranks]``; what was not seen is as above it."""
        if kind not in self._tables:
            table = np.empty((_DEPTHS, _RANKS))
            above = _PRIOR[kind]
            for depth in range(_DEPTHS):
                seen = self._trees[kind, depth] + _PRIOR_TREES
                above = table[depth] = (self._sums[kind, depth] + _PRIOR_TREES * above) / seen
            self._tables[kind] = np.maximum(table, 1e-3)
        return self._tables[kind]

    def _tree(self, kind: int, shape: TreeShape) -> tuple[Floats, Integers]:
        """Of each node but the root of a usual tree of this shape f and depth."""
        known = self._shapes.get((kind, shape))
        if known is None:
            known = self._shapes[kind, shape] = self._grow(kind, shape)
        return known

    def _grow(self, kind: int, shape: TreeShape) -> tuple[Floats, Integers]:
        accepted, width = self._table(kind), min(shape.width, _RANKS)
        level: Floats = np.ones(1)
        found: list[Floats] = []
        for depth in range(shape.levels):
            children = np.outer(level, accepted[min(depth, _DEPTHS - 1), :width]).ravel()
            level = np.sort(children)[::-1][: shape.width]
            found.append(children)
        f = np.concatenate(found)
        depths = np.repeat(np.arange(1, len(found) + 1), [len(each) for each in found])
        best = np.argsort(-f, kind="stable")[: shape.nodes]
        return f[best], depths[best]
