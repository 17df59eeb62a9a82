"""The contract of every drafter, and what goes in and out of it.

A drafter may do as it likes: be wrong, share the row's noise, return nothing. It can only make the
text come sooner or later, never change it: the target has the last word on every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import Row
from specbatch.tree import TokenTree

if TYPE_CHECKING:  # draws in bulk need torch, and the policies that look at drafts do without
    from specbatch.randomness import Stream


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How large a tree may get; a chain of γ tokens is ``TreeShape(γ, 1, γ)``.

    Attributes:
        levels: Depth, at least 1.
        width: Nodes that are expanded per level, and candidates of each of them; at least 1.
        nodes: Nodes that will be verified, the root not counted; at least 1. A drafter may return
            more candidates: which of them are verified is the policy's choice.
        free: No pass of a draft model may be spent on it.
        least: A drafter may end a chain behind a token whose whole path it finds less likely than this.
        free_levels: Depth down to which a chain may go that takes no pass of a draft model, where that is
            deeper than ``levels``; 0: no deeper. Of chains only.
    """

    levels: int
    width: int
    nodes: int
    free: bool = False
    least: float = 0.0
    free_levels: int = 0

    def __post_init__(self) -> None:
        if min(self.levels, self.width, self.nodes) < 1:
            raise ValueError(f"a tree has at least one level, width and node, got {self}")
        if self.free_levels < 0 or (self.free_levels and self.width > 1):
            raise ValueError(f"chains alone have levels that are free, and no fewer than none, got {self}")

    @property
    def deepest(self) -> int:
        """Levels of the deepest proposal within these bounds, whoever makes it."""
        return max(self.levels, self.free_levels)

    @property
    def most(self) -> int:
        """Nodes that may be verified, whoever proposes them."""
        return max(self.nodes, self.free_levels)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One row that may speculate.

    Attributes:
        row: Committed tokens and sampling parameters; not to be changed.
        shape: Bounds of the tree.
        stream: The row's randomness. A candidate j levels below the root (j ≥ 1) is decided by the
            target with the noise of absolute position ``row.committed + j - 1``.
    """

    row: Row
    shape: TreeShape
    stream: Stream


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one row.

    Attributes:
        tree: All candidates; its root is the row's last committed token. A tree of the root alone
            is no proposal.
        passes: Passes of a draft model that this row took part in.
        flops: Floating-point operations charged to the row.
        sources: Where two drafters worked together, who proposed each node: 1 the first, 2 the second,
            3 both; int64 ``[n]``. ``None`` for a drafter that is alone.
        discarded: Candidates that were produced and are not in the tree: drafted, and never selected.
    """

    tree: TokenTree
    passes: int = 0
    flops: float = 0.0
    discarded: int = 0
    sources: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Committed tokens of a row whose keys and values the target has just stored.

    Attributes:
        row: The row after the commit; the last of them is at position ``row.cached - 1``.
        first: Position of the first of them.
        features: Inputs of the captured layers at these tokens, float32
            ``[count, captured layers, hidden]``; ``None`` when the drafter captures none.
    """

    row: Row
    first: int
    features: NDArray[np.float32] | None

    @property
    def count(self) -> int:
        """How many tokens, at least 1."""
        return self.row.cached - self.first


class Drafter(Protocol):
    """Proposes candidate continuations."""

    @property
    def name(self) -> str:
        """What the settings call it."""
        ...

    @property
    def captured(self) -> tuple[int, ...]:
        """Target layers whose inputs it wants to observe, in that order; ``()`` for none."""
        ...

    def begin(self) -> None:
        """Start afresh: a run must not profit from what another one wrote, nor suffer from it.

        Called before anything else of a run. Nothing of the rows before is known from here on, and no
        page of the target holds what it held.
        """
        ...

    def observe(self, observed: Sequence[Observed]) -> None:
        """See what the target stored; called after each step's commit, for rows still in flight."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request, in their order."""
        ...

    def forget(self, row: Row) -> None:
        """Let go of a row that ended or lost its pages; may be called again, or for strangers."""
        ...
