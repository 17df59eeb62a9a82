"""The tree of one row while its levels are drafted (EAGLE-2, Li et al. 2024, section 4.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specbatch.draft.base import TreeShape
from specbatch.tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Beam:
    """A growing tree.

    Every node has a merit, the log of how likely the row is to take the path to it. For a greedy row
    that is the drafter's path probability. A sampled row shares its noise with the target, which
    decides among siblings more than their probabilities do; there a node's share of merit is that of
    its ranking score among its siblings.

    Args:
        token: The last committed token.
        shape: Bounds of the tree.
        sampled: Whether the row is drawn with noise.
    """

    def __init__(self, token: int, shape: TreeShape, sampled: bool) -> None:
        self._shape, self._sampled = shape, sampled
        self._tokens, self._parents = [token], [-1]
        self._log_probs, self._merits = [0.0], [0.0]
        self.frontier: list[int] = [0]
        """Nodes to be expanded next, none when the tree is complete; at first the root."""
        self.depth = 0
        """Depth of the frontier."""

    def token(self, node: int) -> int:
        """The token a node stands for."""
        return self._tokens[node]

    def parent(self, node: int) -> int:
        """The node above."""
        return self._parents[node]

    def grow(self, ids: Ints, log_probs: Floats, scores: Floats) -> None:
        """Hang candidates under the nodes of the frontier and choose the next frontier.

        Args:
            ids: Tokens, best first, -1 behind the last; ``[frontier, at least width]``.
            log_probs: Of each given the path to its parent.
            scores: What the candidates of a node are ranked by.
        """
        width, start = self._shape.width, len(self._tokens)
        for node, own_ids, own_probs, own_scores in zip(
            self.frontier,
            ids[:, :width].tolist(),
            log_probs[:, :width].tolist(),
            scores[:, :width],
            strict=True,
        ):
            shares = _shares(own_scores) if self._sampled else own_probs
            for token, log_prob, share in zip(own_ids, own_probs, shares, strict=True):
                if token >= 0 and log_prob > -np.inf:
                    self._tokens.append(token)
                    self._parents.append(node)
                    self._log_probs.append(log_prob)
                    self._merits.append(self._merits[node] + share)
        self.depth += 1
        self.frontier = self._next_frontier(start) if self.depth < self._shape.levels else []

    @property
    def produced(self) -> int:
        """Candidates so far."""
        return len(self._tokens) - 1

    def tree(self) -> TokenTree:
        """The nodes of highest merit, as many as the shape verifies; ties by index.

        What lies behind them could not be selected, and is not handed over.
        """
        kept = np.sort(self._best())
        place = np.full(len(self._tokens), -1, dtype=np.int32)
        place[kept] = np.arange(len(kept), dtype=np.int32)
        parents = np.array(self._parents, dtype=np.int64)[kept]
        return TokenTree(
            np.array(self._tokens, dtype=np.int64)[kept],
            np.where(parents < 0, -1, place[parents]).astype(np.int32),
            np.array(self._log_probs)[kept],
        )

    def _best(self) -> Ints:
        """The root and the best nodes below it, which hang together: no node is better than its parent."""
        order = np.argsort(-np.array(self._merits[1:]), kind="stable")[: self._shape.nodes]
        return np.concatenate((np.zeros(1, dtype=np.int64), order + 1))

    def _next_frontier(self, start: int) -> list[int]:
        """The best nodes of the level that begins at ``start``, of those that may still be selected."""
        if len(self._tokens) == start + 1:
            return [start]
        best = self._best()[1:]
        return [int(node) for node in best[best >= start][: self._shape.width]]


def _shares(scores: Floats) -> list[float]:
    """Log of the softmax over siblings."""
    usable = scores[scores > -np.inf]
    if not len(usable):
        return [-np.inf] * len(scores)
    top = usable.max()
    total = top + np.log(np.exp(usable - top).sum())
    shares: list[float] = np.minimum(scores - total, 0.0).tolist()
    return shares
