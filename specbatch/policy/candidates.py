"""What rows could have verified, and what of it is: the two ends of selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.policy.need import NONE, Need, Needs
from specbatch.tree import TokenTree

ROUNDING = 1e-9
"""Sums of probabilities that miss a need by less than this reach it."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What one row could have verified.

    Attributes:
        f: For each node of its tree the probability that the target accepts the whole path to it,
            float64 ``[n]``; 1 for the root, which stands first, and never above the parent's.
        need: What the row's promises ask for.
        levels: d, depth of the tree: no step brings the row more than d + 1 tokens.
        n_max: Most nodes that the row gets on account of its promises.
        weight: Worth of one of its tokens where rows compete.
    """

    f: Floats
    need: Need = NONE
    levels: int = 1
    n_max: int = 2**30
    weight: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTable:
    """What R rows could have verified, C nodes each at most.

    Attributes:
        f: For each row its nodes but the root, float64 ``[R, C]``; -1 behind the last one.
        needs: What the rows' promises ask for.
        levels: d of each row, int64 ``[R]``.
        n_max: Most nodes on account of promises, int64 ``[R]``.
        weights: float64 ``[R]``.
    """

    f: Floats
    needs: Needs
    levels: Integers
    n_max: Integers
    weights: Floats

    @property
    def nodes(self) -> list[list[float]]:
        """The same without what is behind the last node, as plain numbers."""
        return [[f for f in row if f >= 0.0] for row in self.f.tolist()]

    @classmethod
    def of(cls, rows: Sequence[Candidates]) -> CandidateTable:
        """Lay rows side by side."""
        counts = np.array([len(row.f) for row in rows]) - 1
        real = np.arange(int(counts.max())) < counts[:, None]
        f = np.full(real.shape, -1.0)
        f[real] = np.concatenate([row.f[1:] for row in rows])
        return cls(
            f,
            Needs([row.need for row in rows]),
            np.array([row.levels for row in rows]),
            np.array([row.n_max for row in rows]),
            np.array([row.weight for row in rows]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What is verified, and why; R rows.

    Attributes:
        order: Nodes of each row in the order in which they are taken, int64 ``[R, C]``.
        taken: How many of them are, int64 ``[R]``.
        slo_nodes: How many of those its promises asked for, int64 ``[R]``; the others were worth it.
        needed: A of each row, float64 ``[R]``.
        expected: Tokens that each row may expect, float64 ``[R]``.
        reach: Tokens that it could expect if all was done for its promises, float64 ``[R]``.
        hopeless: Rows that miss their SLO whatever is done for them, bool ``[R]``.
        unfunded: Rows whose A did not fit into the budget, bool ``[R]``.
        step_s: Predicted seconds of the step.
        rate: Expected tokens per second (or price), weighted; ``base_rate`` without the throughput phase.
    """

    order: Integers
    taken: Integers
    slo_nodes: Integers
    needed: Floats
    expected: Floats
    reach: Floats
    hopeless: Bools
    unfunded: Bools
    step_s: float
    rate: float
    base_rate: float

    @property
    def total(self) -> int:
        """Drafted tokens in the pass."""
        return int(self.taken.sum())

    @property
    def short(self) -> Bools:
        """Rows with hope that may expect less than they need, bool ``[R]``."""
        return ~self.hopeless & (self.expected < self.needed - ROUNDING)

    def nodes(self, row: int) -> Integers:
        """Chosen nodes of a row, ascending, the root not among them."""
        chosen: Integers = np.sort(self.order[row, : self.taken[row]])
        return chosen

    def kept(self, tree: TokenTree, row: int) -> TokenTree:
        """What is verified of a row's tree; f falls along a chain, so of a chain it is the beginning."""
        return tree.first(int(self.taken[row])) if tree.is_chain else tree.keep(self.nodes(row))
