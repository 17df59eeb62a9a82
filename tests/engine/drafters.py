"""Drafters for tests: one that knows the future, some that are wrong, one that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.rows import Row
from specbatch.tree import TokenTree

Future = Callable[[DraftRequest, int], list[int]]
"""The next tokens of a row as the target will choose them."""


@dataclass
class TestDrafter:
    """Proposes nothing and checks what it is told: no gap, no row that was not there.

    Attributes:
        seen: Row index → position up to which keys and values were stored when last observed.
    """

    __test__ = False
    name: str = "test"
    captured: tuple[int, ...] = ()
    seen: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        self.seen.clear()

    def observe(self, observed: Sequence[Observed]) -> None:
        for each in observed:
            index = each.row.prompt.row_index
            assert each.count >= 1
            assert each.row.cached < each.row.committed
            if index in self.seen:
                assert each.first == self.seen[index], "the target stored something unseen"
            self.seen[index] = each.row.cached

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self.tree(request), passes=request.shape.levels, flops=10.0) for request in requests]

    def tree(self, request: DraftRequest) -> TokenTree:
        return TokenTree.root(request.row.token(request.row.committed - 1))

    def forget(self, row: Row) -> None:
        self.seen.pop(row.prompt.row_index, None)


@dataclass
class Oracle(TestDrafter):
    """Proposes what the target will choose, as one chain, and wrong alternatives beside it if asked to.

    Attributes:
        future: Knows it.
        decoys: Wrong children of each node, before and behind the right one.
        wrong_from: From this depth on the right token is missing.
        vocab: Tokens that decoys are made of.
    """

    future: Future = lambda _request, _count: []
    decoys: int = 0
    wrong_from: int = 10**9
    vocab: int = 32
    random: Random = field(default_factory=lambda: Random(5))

    def tree(self, request: DraftRequest) -> TokenTree:
        row = request.row
        tokens, parents, log_probs = [row.token(row.committed - 1)], [-1], [0.0]
        node = 0
        for depth, right in enumerate(self.future(request, request.shape.levels), start=1):
            wrong = [token for token in range(self.vocab) if token != right]
            children = self.random.sample(wrong, self.decoys)
            if depth < self.wrong_from:
                children.insert(self.random.randint(0, len(children)), right)
            here = node
            for token in children:
                tokens.append(token)
                parents.append(here)
                log_probs.append(-0.1 if token == right else -1.0)
                node = len(tokens) - 1 if token == right else node
            if node == here:
                break
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))


@dataclass
class Nonsense(TestDrafter):
    """Random trees, deeper and larger than asked for, of tokens that may not exist."""

    vocab: int = 32
    random: Random = field(default_factory=lambda: Random(3))

    def tree(self, request: DraftRequest) -> TokenTree:
        size = self.random.randint(0, min(3 * request.shape.nodes, 20))
        tokens, parents = [request.row.token(request.row.committed - 1)], [-1]
        used = set()
        for _ in range(size):
            pair = self.random.randrange(len(tokens)), self.random.randrange(self.vocab)
            if pair not in used:
                used.add(pair)
                parents.append(pair[0])
                tokens.append(pair[1])
        log_probs = [0.0, *(-self.random.random() for _ in tokens[1:])]
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))


@dataclass
class Crashing(Oracle):
    """Fails now and then, in every call."""

    every: int = 3
    calls: int = 0

    def observe(self, observed: Sequence[Observed]) -> None:
        self._count()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._count()
        return super().propose(requests)

    def forget(self, row: Row) -> None:
        self._count()

    def _count(self) -> None:
        self.calls += 1
        if self.calls % self.every == 0:
            raise RuntimeError("out of ideas")


@dataclass
class Broken(TestDrafter):
    """Malformed drafts: probabilities that are no numbers, the wrong root, too few of them."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        nan = TokenTree(np.array([0, 1]), np.array([-1, 0], dtype=np.int32), np.array([0.0, np.nan]))
        return [Draft(nan) for _ in requests]
