"""Two drafters in order: the one that costs nothing first, the other one where that has nothing good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specbatch.draft.base import Draft, Drafter, DraftRequest, Observed
from specbatch.draft.guarded import counted_faults
from specbatch.rows import Row
from specbatch.tree import TokenTree

_FIRST, _SECOND, _BOTH = 1, 2, 3
_MAX_DEPTH = 32
_PRIOR_RATE = 0.6
"""Assumed acceptance per level of the second drafter, before anything was seen."""
_PRIOR_WEIGHT = 20.0
"""Drafts that the assumption is worth."""

SECOND_COST = 0.1
"""Time that the second drafter takes, as a share of a target pass."""


def expected_accepted(tree: TokenTree) -> float:
    """Drafted tokens that the target is expected to accept: the sum of the path probabilities."""
    return float(np.exp(tree.path_log_probs[1:]).sum())


def has_free_drafts(name: str) -> bool:
    """Whether a drafter of this name proposes something without a pass of a draft model."""
    return "+" in name


class FirstThen:
    """Asks the first drafter about every row, and the second about those with too little promise.

    Drafts of the first are free, those of the second take a share c of a target pass. A row does better
    with the first alone if that promises E₁ tokens and ``1 + E₁ ≥ (1 + E₂) / (1 + c)``, where E₂ is what
    the second has delivered so far for trees of that depth (greedy and sampled rows apart).

    Where both were asked, a tree holds the candidates of both and the policy selects; a chain is that
    of the two which promises more. Chains of the first go down to ``free_levels``, those of the second,
    whose every level is a pass, to ``levels``.

    Args:
        first: Captures no layers and states probabilities that hold on average.
        second: Any drafter.
        second_cost: c.

    Attributes:
        name: Both names.
        captured: That of the second.
    """

    def __init__(self, first: Drafter, second: Drafter, second_cost: float = SECOND_COST) -> None:
        if first.captured:
            raise ValueError(f"the first of two drafters captures no layers, {first.name} does")
        self.name = f"{first.name}+{second.name}"
        self.captured = second.captured
        self._first, self._second = first, second
        self._second_cost = second_cost
        self._forget_all()

    @property
    def faults(self) -> int:
        """Drafts that either of them left empty because its own output made no sense."""
        return counted_faults(self._first) + counted_faults(self._second)

    def begin(self) -> None:
        """Both start afresh."""
        self._forget_all()
        self._first.begin()
        self._second.begin()

    def observe(self, observed: Sequence[Observed]) -> None:
        """Both see everything."""
        for item in observed:
            self._settle(item.row)
        self._first.observe(observed)
        self._second.observe(observed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One call of each drafter, the second for the rows where the first promises too little."""
        drafts = self._first.propose([_freely(request) for request in requests])
        weak = []
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            self._settle(request.row)
            if not request.shape.free and expected_accepted(draft.tree) < self._bar(request):
                weak.append(i)
            else:
                drafts[i] = replace(draft, sources=np.full(len(draft.tree), _FIRST))
        if not weak:
            return drafts
        seconds = self._second.propose([requests[i] for i in weak])
        for i, second in zip(weak, seconds, strict=True):
            row, levels = requests[i].row, requests[i].shape.levels
            self._pending[row] = _Pending(row.committed, levels, second.tree)
            drafts[i] = _joined(drafts[i], second, requests[i].shape.width == 1)
        return drafts

    def forget(self, row: Row) -> None:
        """Both forget; what became of a draft that the row has not got beyond is never known."""
        self._settle(row)
        self._pending.pop(row, None)
        self._first.forget(row)
        self._second.forget(row)

    def _forget_all(self) -> None:
        """As if nothing had been drafted yet."""
        self._delivered = {sampled: _Delivered() for sampled in (False, True)}
        self._pending: dict[Row, _Pending] = {}

    def _bar(self, request: DraftRequest) -> float:
        """Promise of the first from which the second is not asked."""
        delivered = self._delivered[request.row.prompt.params.temperature > 0.0]
        return (1.0 + delivered.tokens(request.shape.levels)) / (1.0 + self._second_cost) - 1.0

    def _settle(self, row: Row) -> None:
        """Count what became of the second drafter's last tree for this row."""
        pending = self._pending.get(row)
        if pending is None or row.committed == pending.committed:
            return
        del self._pending[row]
        depth, node = 0, 0
        for position in range(pending.committed, row.committed):
            child = pending.tree.child(node, row.token(position))
            if child is None:
                break
            depth, node = depth + 1, child
        self._delivered[row.prompt.params.temperature > 0.0].record(pending.levels, depth)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A tree whose fate is open."""

    committed: int
    levels: int
    tree: TokenTree


class _Delivered:
    """How deep the text followed a drafter's trees."""

    def __init__(self) -> None:
        self._reached = [_PRIOR_WEIGHT * _PRIOR_RATE**depth for depth in range(_MAX_DEPTH + 1)]
        self._asked = [_PRIOR_WEIGHT] * (_MAX_DEPTH + 1)

    def tokens(self, levels: int) -> float:
        """Mean number of tokens accepted from trees of this many levels."""
        depths = range(1, min(levels, _MAX_DEPTH) + 1)
        return sum(self._reached[depth] / self._asked[depth] for depth in depths)

    def record(self, levels: int, depth: int) -> None:
        """The text followed a tree of this many levels down to a depth."""
        for level in range(1, min(levels, _MAX_DEPTH) + 1):
            self._asked[level] += 1.0
            self._reached[level] += level <= depth


def _freely(request: DraftRequest) -> DraftRequest:
    """What is asked of a drafter whose levels cost nothing."""
    shape = request.shape
    if shape.deepest == shape.levels:
        return request
    return replace(request, shape=replace(shape, levels=shape.deepest, nodes=shape.most))


def _joined(first: Draft, second: Draft, chain: bool) -> Draft:
    """One draft of two, with the costs of both."""
    if chain:
        better, source = max(
            ((second.tree, _SECOND), (first.tree, _FIRST)), key=lambda pair: expected_accepted(pair[0])
        )
        sources = np.full(len(better), source)
    else:
        better = TokenTree.merge(second.tree, first.tree)
        sources = _sources(better, first.tree, len(second.tree))
    produced = first.tree.size + first.discarded + second.tree.size + second.discarded
    passes, flops = first.passes + second.passes, first.flops + second.flops
    return Draft(better, passes, flops, produced - better.size, sources)


def _sources(merged: TokenTree, first: TokenTree, second_size: int) -> NDArray[np.int64]:
    """Who proposed each node of two merged trees, whose first nodes are the second drafter's."""
    places = zip(merged.parents.tolist(), merged.tokens.tolist(), strict=True)
    known = {place: node for node, place in enumerate(places)}
    sources = np.full(len(merged), _FIRST)
    sources[:second_size] = _SECOND
    place = [0]  # node of the first drafter's tree → node of the merged one
    for parent, token in zip(first.parents[1:].tolist(), first.tokens[1:].tolist(), strict=True):
        place.append(known[place[parent], token])
    both = np.array(place)
    sources[both[both < second_size]] = _BOTH
    return sources
