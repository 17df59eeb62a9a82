"""The trees of a step side by side, so that whole-step arithmetic is a few array operations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import Row
from specbatch.tree import TokenTree

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FEW = 32
"""Nodes up to which plain numbers are quicker than arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """T trees with n nodes together; nodes are numbered through, those of a tree lie together.

    Attributes:
        starts: First node of each tree, its root, and the end, int64 ``[T + 1]``.
        owners: Tree of each node, int64 ``[n]``.
        tokens: Token of each node, int64 ``[n]``.
        parents: Parent of each node, int64 ``[n]``; a root is its own.
        depths: Edges above each node, int64 ``[n]``.
        ranks: Place of each node among its siblings, likeliest first, int64 ``[n]``.
        reported: What the drafter said of each node's token given its parent, float64 ``[n]``.
    """

    starts: Integers
    owners: Integers
    tokens: Integers
    parents: Integers
    depths: Integers
    ranks: Integers
    reported: Floats

    @classmethod
    def of(cls, trees: Sequence[TokenTree]) -> Forest:
        """Lay trees side by side.

        Args:
            trees: At least one.
        """
        sizes = [len(tree) for tree in trees]
        starts = np.zeros(len(trees) + 1, dtype=np.int64)
        np.cumsum(sizes, out=starts[1:])
        owners = np.repeat(np.arange(len(trees)), sizes)
        parents = np.concatenate([tree.parents for tree in trees]) + starts[owners]
        parents[starts[:-1]] = starts[:-1]
        reported = np.exp(np.concatenate([tree.log_probs for tree in trees]))
        tokens = np.concatenate([tree.tokens for tree in trees])
        numbers = np.arange(len(tokens))
        if (numbers - parents).max() <= 1:  # chains only, which is usual
            depths, ranks = numbers - starts[owners], np.zeros(len(tokens), dtype=np.int64)
        else:
            depths = _depths(parents)
            ranks = _ranks(parents, depths, reported)
        return cls(starts, owners, tokens, parents, depths, ranks, reported)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.tokens)

    def paths(self, conditional: Floats) -> Floats:
        """Products along the paths from the roots, float64 ``[n]``; 1 for roots.

        Args:
            conditional: A number for each node, float64 ``[n]``; those of roots are not looked at.
        """
        products = np.ones(len(self))
        for depth in range(1, int(self.depths.max()) + 1):
            here = np.flatnonzero(self.depths == depth)
            products[here] = products[self.parents[here]] * conditional[here]
        return products

    def capped(self, conditional: Floats) -> Floats:
        """Scale siblings down whose numbers add up to more than 1: at most one of them is accepted."""
        if not self.ranks.any():
            return conditional
        below = self.depths > 0
        sums = np.bincount(self.parents[below], conditional[below], minlength=len(self))
        scaled: Floats = conditional / np.maximum(1.0, sums)[self.parents]
        return scaled

    def reached(self, chosen: Sequence[Sequence[int]]) -> tuple[Integers, NDArray[np.bool_]]:
        """Candidates that the target decided about, and how.

        Args:
            chosen: For each tree the tokens that the target chose from its root on, in order.

        Returns:
            Nodes whose parent was accepted, int64 ``[k]``, by depth, and whether they were too, bool ``[k]``.
        """
        longest = max(map(len, chosen), default=0)
        wanted = np.array([[*tokens, *[-1] * (longest - len(tokens))] for tokens in chosen])
        accepted = self.starts[:-1].copy()  # deepest accepted node of each tree, -1 once its path has ended
        nodes, verdicts = [], []
        for depth in range(longest):
            due = wanted[self.owners, depth]
            found = np.flatnonzero((self.parents == accepted[self.owners]) & (self.depths > 0) & (due >= 0))
            if not len(found):
                break
            right = self.tokens[found] == due[found]
            nodes.append(found)
            verdicts.append(right)
            accepted[:] = -1
            accepted[self.owners[found[right]]] = found[right]
        if not nodes:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
        return np.concatenate(nodes), np.concatenate(verdicts)


@dataclass(frozen=True, eq=False)
class Drafts:
    """What was proposed in a step, to T rows.

    Attributes:
        trees: All candidates of each row.
        rows: The rows, in the same order.
        sources: Who proposed each node of all trees: 0 a drafter that is alone, else 1 the first of two,
            2 the second, 3 both; int64 ``[n]``.
    """

    trees: Sequence[TokenTree]
    rows: Sequence[Row]
    sources: Integers

    @classmethod
    def joined(cls, steps: Sequence[Drafts]) -> Drafts:
        """What was proposed in several steps, at least one, as if it had been one."""
        trees = [tree for drafts in steps for tree in drafts.trees]
        rows = [row for drafts in steps for row in drafts.rows]
        return cls(trees, rows, np.concatenate([drafts.sources for drafts in steps]))

    @cached_property
    def empty(self) -> bool:
        """Whether nothing was proposed to anybody."""
        return not any(tree.size for tree in self.trees)

    @cached_property
    def starts(self) -> list[int]:
        """First node of each tree, and the end."""
        return [0, *itertools.accumulate(map(len, self.trees))]

    @cached_property
    def forest(self) -> Forest:
        """The trees side by side."""
        return Forest.of(self.trees)


class PlainNode(NamedTuple):
    """A node of a tree, its root aside; as the same entries of :class:`Forest`."""

    parent: int
    depth: int
    rank: int
    reported: float


def plain_nodes(tree: TokenTree) -> list[PlainNode]:
    """Nodes of a tree but the root, in order; twin of :meth:`Forest.of` for few of them."""
    parents, reported = tree.parents.tolist(), np.exp(tree.log_probs).tolist()
    if tree.is_chain:
        return [PlainNode(node - 1, node, 0, reported[node]) for node in range(1, len(parents))]
    depths, siblings, ranks = tree.depths.tolist(), [0] * len(parents), [0] * len(parents)
    for node in sorted(range(1, len(parents)), key=lambda node: -reported[node]):  # ties: by index
        ranks[node] = siblings[parents[node]]
        siblings[parents[node]] += 1
    return [PlainNode(*each) for each in zip(parents, depths, ranks, reported, strict=True)][1:]


def _depths(parents: Integers) -> Integers:
    """Edges above each node; the part of its path that has been counted doubles every time."""
    depths: Integers = (parents != np.arange(len(parents))).astype(np.int64)
    end = parents
    while (above := depths[end]).any():
        depths += above
        end = end[end]
    return depths


def _ranks(parents: Integers, depths: Integers, reported: Floats) -> Integers:
    """Place among siblings by falling probability; ties by index."""
    keys = np.where(depths > 0, parents, -1)
    order = np.lexsort((-reported, keys))
    sorted_keys = keys[order]
    places = np.arange(len(order))
    first = places.copy()  # of the siblings that each stands among
    first[1:][sorted_keys[1:] == sorted_keys[:-1]] = 0
    first = np.maximum.accumulate(first)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = places - first
    return ranks
