"""Token trees: candidate continuations of one row, as arrays (SpecInfer, Miao et al. 2024, section 4).

Node 0 is the root, the row's last committed token. Every other node is a drafted token; a parent
stands before its children and siblings carry different tokens, so a path spells a continuation and
no two nodes spell the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Candidate continuations of a row.

    Attributes:
        tokens: Token of each node, int64 ``[n]``, n ≥ 1; the first is the last committed token.
        parents: Parent of each node, int32 ``[n]``, smaller than the node's own index; -1 for the root.
        log_probs: Log of the drafter's probability of the node's token given the path to its
            parent, float64 ``[n]``, at most 0; 0 for the root.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int32]
    log_probs: NDArray[np.float64]

    @classmethod
    def root(cls, token: int) -> TokenTree:
        """The tree that proposes nothing."""
        return cls.chain(token, (), ())

    @classmethod
    def chain(cls, token: int, tokens: Sequence[int], log_probs: Sequence[float]) -> TokenTree:
        """One path below the root.

        Args:
            token: The last committed token.
            tokens: Drafted tokens in order.
            log_probs: Their conditional log probabilities, as many.
        """
        return cls(
            np.array([token, *tokens], dtype=np.int64),
            np.arange(-1, len(tokens), dtype=np.int32),
            np.array([0.0, *log_probs]),
        )

    @classmethod
    def merge(cls, a: TokenTree, b: TokenTree) -> TokenTree:
        """The union of the paths of two trees with the same root token.

        Nodes of ``a`` come first and keep their indices. A path that both trees have keeps the
        larger conditional probability.

        Raises:
            ValueError: The root tokens differ.
        """
        if a.tokens[0] != b.tokens[0]:
            raise ValueError(f"trees of different rows: root tokens {a.tokens[0]} and {b.tokens[0]}")
        tokens, parents, log_probs = a.tokens.tolist(), a.parents.tolist(), a.log_probs.tolist()
        known = {key: node for node, key in enumerate(zip(parents, tokens, strict=True))}
        place = [0]  # node of b → node of the union
        theirs = zip(b.parents[1:].tolist(), b.tokens[1:].tolist(), b.log_probs[1:].tolist(), strict=True)
        for parent, token, log_prob in theirs:
            key = place[parent], token
            node = known.setdefault(key, len(tokens))
            place.append(node)
            if node == len(tokens):
                tokens.append(token)
                parents.append(key[0])
                log_probs.append(log_prob)
            else:
                log_probs[node] = max(log_probs[node], log_prob)
        return cls(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        same = np.array_equal(self.tokens, other.tokens) and np.array_equal(self.parents, other.parents)
        return same and np.array_equal(self.log_probs, other.log_probs)

    __hash__ = None  # type: ignore[assignment] # arrays have none

    @property
    def size(self) -> int:
        """Number of drafted tokens: every node but the root."""
        return len(self.tokens) - 1

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children, so that node i stands at depth i."""
        parents: list[int] = self.parents.tolist()
        return parents == list(range(-1, self.size))

    @property
    def depths(self) -> NDArray[np.int32]:
        """Edges between the root and each node, int32 ``[n]``."""
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, dtype=np.int32)

    @property
    def path_log_probs(self) -> NDArray[np.float64]:
        """Log probability of the path from the root to each node, float64 ``[n]``.

        Rounding keeps order, so no node ever exceeds its parent.
        """
        totals = [0.0]
        for parent, log_prob in zip(self.parents[1:].tolist(), self.log_probs[1:].tolist(), strict=True):
            totals.append(totals[parent] + log_prob)
        return np.array(totals)

    @property
    def lineages(self) -> list[list[int]]:
        """For each node what :meth:`ancestors` gives: the nodes from depth 1 down to itself."""
        lineages: list[list[int]] = [[]]
        for node, parent in enumerate(self.parents[1:].tolist(), start=1):
            lineages.append([*lineages[parent], node])
        return lineages

    def children(self, node: int) -> NDArray[np.int64]:
        """Nodes right below this one, ascending."""
        return np.flatnonzero(self.parents == node)

    def child(self, node: int, token: int) -> int | None:
        """The node below this one that carries the token."""
        places = zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        return next((i for i, place in enumerate(places) if place == (node, token)), None)

    def ancestors(self, node: int) -> list[int]:
        """Nodes from depth 1 down to this one, itself included; none for the root."""
        path = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """Who sees whom, bool ``[n, n]``: a node sees itself and its ancestors, the root included."""
        lineages = self.lineages
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        mask[:, 0] = True
        rows = np.repeat(np.arange(len(self)), [len(lineage) for lineage in lineages])
        mask[rows, [node for lineage in lineages for node in lineage]] = True
        return mask

    def tokens_of(self, nodes: Sequence[int]) -> list[int]:
        """Tokens of some nodes."""
        tokens = self.tokens.tolist()
        return [tokens[node] for node in nodes]

    def path(self, node: int) -> tuple[int, ...]:
        """Tokens from depth 1 down to this node; none for the root."""
        return tuple(self.tokens_of(self.ancestors(node)))

    def keep(self, nodes: Sequence[int] | NDArray[np.int64]) -> TokenTree:
        """The tree of the root and these nodes, in their present order.

        Raises:
            ValueError: A node's parent is neither the root nor kept.
        """
        kept = np.zeros(len(self), dtype=np.bool_)
        kept[np.asarray(nodes, dtype=np.int64)] = True
        kept[0] = True
        parents = self.parents[kept]
        if not kept[parents[1:]].all():
            raise ValueError("nodes can only be kept together with their parents")
        place = kept.cumsum(dtype=np.int32) - 1
        parents = place[parents]
        parents[0] = -1
        return TokenTree(self.tokens[kept], parents, self.log_probs[kept])

    def first(self, count: int) -> TokenTree:
        """The tree of the root and the first ``count`` drafted tokens: of a chain its beginning."""
        end = count + 1
        return TokenTree(self.tokens[:end], self.parents[:end], self.log_probs[:end])

    def best(self, count: int) -> TokenTree:
        """The tree of the ``count`` likeliest drafted tokens by path probability; ties by index.

        A node is never likelier than its parent, so the result always hangs together
        (EAGLE-2, Li et al. 2024, section 4.2).
        """
        if count >= self.size:
            return self
        order = np.argsort(-self.path_log_probs[1:], kind="stable")
        return self.keep(order[: max(count, 0)] + 1)

    def check(self) -> None:
        """Assert every invariant: what a drafter hands over is looked at before it is used.

        Raises:
            ValueError: The arrays are no token tree, or a probability is not in [0, 1].
        """
        n = self.tokens.size
        if n < 1 or not self.tokens.shape == self.parents.shape == self.log_probs.shape == (n,):
            raise ValueError("a token tree needs as many parents and log probabilities as tokens")
        if self.tokens.dtype.kind != "i" or self.parents.dtype.kind != "i":
            raise ValueError("tokens and parents of a token tree are signed integers")
        tokens, parents, log_probs = self.tokens.tolist(), self.parents.tolist(), self.log_probs.tolist()
        if parents[0] != -1 or not all(0 <= parents[node] < node for node in range(1, n)):
            raise ValueError("in a token tree every parent stands before its children")
        if log_probs[0] != 0.0 or not all(log_prob <= 0.0 for log_prob in log_probs):
            raise ValueError("a drafted token's log probability is above 0 or not a number")
        if min(tokens) < 0:
            raise ValueError("a drafted token is negative")
        if len(set(zip(parents, tokens, strict=True))) != n:
            raise ValueError("two siblings of a token tree carry the same token")
