"""Exact laws of what a verification rule emits, in rational arithmetic.

A *toy* is a target over a handful of tokens with rational probabilities. Its noise is finite: a *draw
table* gives the target's token behind every (noise position, context), and all tables are enumerated
with their probabilities. A *proposal* is then any function of the table: that is what it means for the
drafter to share the target's noise. Instead of enumerating functions, the harness lets an adversary pick
the best and the worst tree for every table and outcome, which bounds all functions at once.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from specbatch.tree import TokenTree

ONE = Fraction(1)
Context: TypeAlias = tuple[int, ...]
Table: TypeAlias = Mapping[tuple[int, Context], int]
Law: TypeAlias = dict[Context, Fraction]
Step: TypeAlias = Callable[[Table, Context, TokenTree], Law]
Proposals: TypeAlias = Callable[[Table, Context], Sequence[TokenTree]]
Probabilities: TypeAlias = tuple[Fraction, ...]


def fractions(*numbers: int) -> Probabilities:
    """Probabilities in the ratio of these numbers."""
    return tuple(Fraction(number, sum(numbers)) for number in numbers)


@dataclass(frozen=True)
class Toy:
    """A target whose law behind a context is ``laws[the context's place in counting order]``, in turn."""

    laws: tuple[Probabilities, ...]
    length: int

    @property
    def vocab(self) -> int:
        return len(self.laws[0])

    def contexts(self) -> list[Context]:
        """Everything that may stand before one of the ``length`` tokens."""
        sizes = range(self.length)
        return [c for size in sizes for c in itertools.product(range(self.vocab), repeat=size)]

    def p(self, context: Context) -> Probabilities:
        place = 0
        for token in context:
            place = place * self.vocab + token + 1
        return self.laws[place % len(self.laws)]

    def beyond(self) -> Table:
        """The target may be asked behind the last token, but no answer counts."""
        texts = itertools.product(range(self.vocab), repeat=self.length)
        return {(at, text): 0 for text in texts for at in range(self.length + 1)}

    def law(self) -> Law:
        """The target's law of ``length`` tokens: plain decoding."""
        texts = itertools.product(range(self.vocab), repeat=self.length)
        return {
            text: math.prod((self.p(text[:i])[token] for i, token in enumerate(text)), start=ONE)
            for text in texts
        }

    def independent_tables(self) -> Iterator[tuple[Fraction, Table]]:
        """Every context has noise of its own."""
        contexts = self.contexts()
        for tokens in itertools.product(range(self.vocab), repeat=len(contexts)):
            chances = (self.p(c)[token] for c, token in zip(contexts, tokens, strict=True))
            table = {(len(c), c): token for c, token in zip(contexts, tokens, strict=True)}
            yield math.prod(chances, start=ONE), {**table, **self.beyond()}

    def shared_tables(self) -> Iterator[tuple[Fraction, Table]]:
        """All contexts at a position read the same noise, as with noise addressed by position.

        The noise of a position is one of ``levels`` equally likely numbers, and a context's token is
        that quantile of its law.
        """
        levels = math.lcm(*(chance.denominator for law in self.laws for chance in law))
        cells = {c: _quantiles(self.p(c), levels) for c in self.contexts()}
        for noise in itertools.product(range(levels), repeat=self.length):
            table = {(at, c): cells[c][noise[at]] for at in range(self.length) for c in cells}
            yield Fraction(1, levels**self.length), {**table, **self.beyond()}


def _quantiles(law: Probabilities, levels: int) -> list[int]:
    return [token for token, chance in enumerate(law) for _ in range(int(chance * levels))]


def all_trees(vocab: int, depth: int) -> list[TokenTree]:
    """Every token tree of this depth or less; the root token plays no part."""
    shapes = _subtrees(vocab, depth)
    trees = []
    for shape in shapes:
        tokens, parents = [0], [-1]
        _plant(shape, 0, tokens, parents)
        trees.append(TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.zeros(len(tokens))))
    return trees


Shape: TypeAlias = tuple[tuple[int, "Shape"], ...]


def _subtrees(vocab: int, depth: int) -> list[Shape]:
    """What can hang below a node: for each token nothing, or a child with what can hang below it."""
    if depth == 0:
        return [()]
    below = _subtrees(vocab, depth - 1)
    per_token = [[None, *((token, shape) for shape in below)] for token in range(vocab)]
    return [tuple(child for child in pick if child is not None) for pick in itertools.product(*per_token)]


def _plant(shape: Shape, node: int, tokens: list[int], parents: list[int]) -> None:
    for token, below in shape:
        tokens.append(token)
        parents.append(node)
        _plant(below, len(tokens) - 1, tokens, parents)


def any_tree(toy: Toy, depth: int) -> Proposals:
    """The adversary may pick any tree no deeper than the row has use for."""
    trees = {d: all_trees(toy.vocab, d) for d in range(depth + 1)}
    return lambda _, context: trees[min(depth, toy.length - len(context) - 1)]


@dataclass(frozen=True)
class Bounds:
    """Least and greatest probability of each text over all proposals."""

    low: Law
    high: Law

    def error(self, target: Law) -> Fraction:
        """Zero exactly if every proposal gives the target's law; a total variation where they agree."""
        apart = (max(self.high[text] - target[text], target[text] - self.low[text]) for text in target)
        return sum(apart, start=Fraction(0)) / 2


def bounds(toy: Toy, tables: Iterator[tuple[Fraction, Table]], step: Step, proposals: Proposals) -> Bounds:
    """Law of the first ``toy.length`` tokens, emitted in as many steps as it takes."""
    low: Law = defaultdict(Fraction)
    high: Law = defaultdict(Fraction)
    total = Fraction(0)
    for chance, table in tables:
        total += chance
        least, most = _reach(toy, table, (step, proposals), ())
        for text, value in least.items():
            low[text] += chance * value
        for text, value in most.items():
            high[text] += chance * value
    assert total == 1, "the tables are not all there"
    return Bounds(low, high)


def _reach(toy: Toy, table: Table, how: tuple[Step, Proposals], context: Context) -> tuple[Law, Law]:
    """Least and greatest probability of each text, given the table and what has been emitted."""
    if len(context) >= toy.length:
        return {context[: toy.length]: ONE}, {context[: toy.length]: ONE}
    step, proposals = how
    laws = {frozenset(step(table, context, tree).items()) for tree in proposals(table, context)}
    onward = {
        emitted: _reach(toy, table, how, context + emitted)
        for emitted in {emitted for law in laws for emitted, _ in law}
    }
    low, high = ([_mixture(law, onward, side) for law in laws] for side in (0, 1))
    texts = {text for mixture in high for text in mixture}
    zero = Fraction(0)
    return (
        {text: min(mixture.get(text, zero) for mixture in low) for text in texts},
        {text: max(mixture.get(text, zero) for mixture in high) for text in texts},
    )


def _mixture(
    law: frozenset[tuple[Context, Fraction]], onward: Mapping[Context, tuple[Law, Law]], side: int
) -> Law:
    out: Law = defaultdict(Fraction)
    for emitted, chance in law:
        for text, value in onward[emitted][side].items():
            out[text] += chance * value
    return out
