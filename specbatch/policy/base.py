"""The contract of every policy, and the bounds that hold whatever the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.rows import Row
from specbatch.tree import TokenTree


class SpeculationPolicy(Protocol):
    """Decides how large the rows' trees may get, and which drafted tokens are verified."""

    @property
    def name(self) -> str:
        """What the settings call it."""
        ...

    @property
    def largest(self) -> TreeShape | None:
        """Bounds that no row's tree exceeds; ``None`` when nothing is drafted."""
        ...

    def shapes(self, rows: Sequence[Row]) -> list[TreeShape | None]:
        """Bounds of each row's tree in this step; ``None`` for rows that draft nothing."""
        ...

    def select(self, drafts: Sequence[TokenTree], shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """The part of each draft that the target verifies.

        Args:
            drafts: What the drafter proposed.
            shapes: The bounds of each, as :meth:`shapes` gave them.

        Returns:
            For each draft a subtree with the same root; the root alone where nothing is worth it.
        """
        ...


class PolicySettings(Protocol):
    """The settings a policy is made from (fields of :class:`~specbatch.config.JobConfig`)."""

    @property
    def policy(self) -> str:
        """``off``, ``fixed``, ``fixed:N`` or ``eagle``."""
        ...

    @property
    def gamma(self) -> int:
        """Tokens of a chain, for ``fixed`` without a number of its own."""
        ...

    @property
    def tree_levels(self) -> int:
        """Depth of a dynamic tree."""
        ...

    @property
    def tree_width(self) -> int:
        """Nodes expanded per level of a dynamic tree, and candidates of each."""
        ...

    @property
    def tree_nodes(self) -> int:
        """Nodes of a dynamic tree that are verified."""
        ...


def bounded(shape: TreeShape, row: Row) -> TreeShape | None:
    """The shape, cut down to what this row can use; ``None`` when that is nothing.

    A verification emits the accepted tokens and one more, so a row that may still emit r tokens has
    use for r - 1 levels. The row's own cap bounds levels and nodes alike.
    """
    levels = min(shape.levels, row.prompt.params.max_tokens - len(row.output) - 1)
    nodes = shape.nodes
    cap = row.prompt.max_draft_tokens
    if cap is not None:
        levels, nodes = min(levels, cap), min(nodes, cap)
    if levels < 1 or nodes < 1:
        return None
    width = min(shape.width, nodes)
    return TreeShape(levels, width, min(nodes, width + (levels - 1) * width * width))


def fit(tree: TokenTree, shape: TreeShape) -> TokenTree:
    """The likeliest part of a tree within the bounds on depth and number of nodes."""
    if tree.size > shape.levels:  # a smaller tree cannot be too deep
        within = np.flatnonzero(tree.depths <= shape.levels)
        tree = tree if len(within) == len(tree) else tree.keep(within)
    return tree.best(shape.nodes)
