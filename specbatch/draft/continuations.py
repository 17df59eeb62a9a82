"""From the places where a text stood before to a tree of how it went on, with counted probabilities."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.draft.occurrences import Match
from specbatch.tree import TokenTree

Noise = Callable[[int, Sequence[int]], Sequence[float]]
"""``noise(depth, tokens)``: the row's Gumbel draws for candidates at a depth."""

Chances = Sequence[float]
"""Probability that a text goes on as its matches of a length did, by length; the last is for longer ones."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """A token tree as lists, with what was known while it grew.

    Attributes:
        tokens: Token of each node, the root's first.
        parents: Parent of each node, -1 for the root.
        log_probs: Log probability of each node given its parent.
        paths: Probability of the path to each node.
        seen: Share of the occurrences behind each node that its drafted children stand for, 0 … 1.
    """

    tokens: list[int]
    parents: list[int]
    log_probs: list[float]
    paths: list[float]
    seen: list[float]

    @property
    def expected(self) -> float:
        """Tokens expected to be accepted: the score of SuffixDecoding (Oliaro et al. 2024, section 3.3)."""
        return sum(self.paths) - 1.0

    def tree(self) -> TokenTree:
        """The same as arrays."""
        return TokenTree(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.parents, dtype=np.int32),
            np.array(self.log_probs, dtype=np.float64),
        )


def grow(
    root: int, text: array[int], match: Match, shape: TreeShape, chances: Chances, noise: Noise | None
) -> Continuations:
    """The likeliest continuations of a match, counted over its occurrences.

    A node's probability is its share of the occurrences behind its parent, times the chance of a match
    as long as the one at the root and the path to the parent together.

    Args:
        root: The row's last committed token.
        text: Tokens in which the places of the match lie; negative where a document ends.
        match: Where the text stood before.
        shape: Bounds of the tree.
        chances: Of matches, by their length.
        noise: Ranks the candidates of a sampled row as its target will; ``None`` for greedy rows.

    Returns:
        At most ``shape.nodes`` nodes besides the root, in the order of their path probabilities.
    """
    found = Continuations([root], [-1], [0.0], [1.0], [0.0])
    if len(match.places) == 1:
        _copy(found, text, match, min(shape.levels, shape.nodes), chances)
        return found
    longest = len(chances) - 1
    heap: list[tuple[float, int, int, int, int, float, float, list[int]]] = []
    expanded = [0] * shape.levels
    node, depth, places, pushed = 0, 0, list(match.places), 0
    while True:
        if depth < shape.levels and expanded[depth] < shape.width:
            expanded[depth] += 1
            chance, path = chances[min(match.length + depth, longest)], found.paths[node]
            for token, share, after in _children(text, places, shape.width, depth + 1, noise):
                probability = chance * share
                pushed += 1  # of equally likely paths the one found first
                entry = (-path * probability, pushed, token, node, depth + 1, share, probability, after)
                heappush(heap, entry)
        if not heap or len(found.tokens) > shape.nodes:
            return found
        minus_path, _, token, parent, depth, share, probability, places = heappop(heap)
        node = len(found.tokens)
        found.tokens.append(token)
        found.parents.append(parent)
        found.log_probs.append(math.log(probability))
        found.paths.append(-minus_path)
        found.seen.append(0.0)
        found.seen[parent] += share


def _copy(found: Continuations, text: array[int], match: Match, count: int, chances: Chances) -> None:
    """The one path behind a single occurrence."""
    (place,) = match.places
    path, longest = 1.0, len(chances) - 1
    for depth, token in enumerate(text[place : place + count]):
        if token < 0:
            return
        chance = chances[min(match.length + depth, longest)]
        path *= chance
        found.seen[depth] = 1.0
        found.tokens.append(token)
        found.parents.append(depth)
        found.log_probs.append(math.log(chance))
        found.paths.append(path)
        found.seen.append(0.0)


def _children(
    text: array[int], places: Iterable[int], width: int, depth: int, noise: Noise | None
) -> list[tuple[int, float, list[int]]]:
    """Tokens at these places with their share and the places behind them, most promising first."""
    groups: dict[int, list[int]] = {}
    total = 0
    for place in places:
        token = text[place]
        if token >= 0:
            groups.setdefault(token, []).append(place + 1)
            total += 1
    if len(groups) == 1:
        ((token, after),) = groups.items()
        return [(token, 1.0, after)]
    tokens = sorted(groups, key=lambda token: -len(groups[token]))  # as frequent: the latest first
    if noise is not None and len(tokens) > width:
        draws = dict(zip(tokens, noise(depth, tokens), strict=True))
        tokens.sort(key=lambda token: -math.log(len(groups[token])) - draws[token])
    return [(token, len(groups[token]) / total, groups[token]) for token in tokens[:width]]
