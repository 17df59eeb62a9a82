"""Which drafted tokens survive, and what comes next.

At each visited node the target chooses its own next token exactly as in plain decoding (greedy, or by
the noise addressed to the row and position: :mod:`specbatch.randomness`). If the tree holds that token
as a child, the walk descends; else the token is emitted as the bonus and the walk ends. What is
emitted is always what the target chose, so the text equals plain decoding for any tree whatever
(shared noise as a coupling: Daliri, Musco & Suresh 2025, "Coupling without communication").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbatch.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one tree.

    Attributes:
        path: Accepted nodes in depth order, root excluded.
        bonus: The token the target chose behind the last of them; ``None`` if its logits there were
            not numbers.
    """

    path: tuple[int, ...]
    bonus: int | None


@dataclass(frozen=True, slots=True)
class Visit:
    """A node at which the target is asked for its next token.

    Attributes:
        tree_index: Which of the trees.
        node: The node.
        path_tokens: Tokens from depth 1 down to the node, the row's text behind its committed tokens.
    """

    tree_index: int
    node: int
    path_tokens: tuple[int, ...]


Choose = Callable[[int, tuple[int, ...]], int | None]
ChooseMany = Callable[[Sequence[Visit]], Sequence[int | None]]


def walk(tree: TokenTree, choose: Choose) -> Verdict:
    """The rule.

    Args:
        tree: The row's candidates.
        choose: ``choose(node, path_tokens)`` is the target's token behind a node, ``None`` if its
            logits are not numbers. Called for visited nodes only, from the root down.
    """
    node = 0
    path: list[int] = []
    while True:
        token = choose(node, tree.path(node))
        child = None if token is None else tree.child(node, token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def walk_level_by_level(trees: Sequence[TokenTree | None], choose: ChooseMany) -> list[Verdict]:
    """Fast twin of :func:`walk` for many trees: one call of ``choose`` for each depth.

    Args:
        trees: One for each row; ``None`` where nothing was drafted.
        choose: The target's tokens behind the given nodes, in their order; every tree appears at
            most once in a call, and only visited nodes are ever asked about.

    Returns:
        One verdict for each tree.
    """
    verdicts: list[Verdict] = [Verdict((), None)] * len(trees)
    paths: list[list[int]] = [[] for _ in trees]
    visits = [Visit(index, 0, ()) for index in range(len(trees))]
    while visits:
        deeper = []
        for visit, token in zip(visits, choose(visits), strict=True):
            index = visit.tree_index
            tree = trees[index]
            child = None if token is None or tree is None else tree.child(visit.node, token)
            if child is None or token is None:
                verdicts[index] = Verdict(tuple(paths[index]), token)
            else:
                paths[index].append(child)
                deeper.append(Visit(index, child, (*visit.path_tokens, token)))
        visits = deeper
    return verdicts
