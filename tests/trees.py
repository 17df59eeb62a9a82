"""Random token trees for property tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from specbatch.tree import TokenTree

VOCAB = 5
ROOT = 3

log_probs = st.sampled_from([0.0, -0.1, -0.5, -0.5000001, -1.0, -30.0, float("-inf")])


@st.composite
def trees(draw: st.DrawFn, max_size: int = 14) -> TokenTree:
    """Nodes are hung below random earlier ones; siblings get different tokens."""
    tokens, parents, probabilities = [ROOT], [-1], [0.0]
    for _ in range(draw(st.integers(0, max_size))):
        parent = draw(st.integers(0, len(tokens) - 1))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        free = sorted(set(range(VOCAB)) - taken)
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
            probabilities.append(draw(log_probs))
    return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(probabilities))


def spelt(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Every path below the root as tokens → conditional log probability of its last token."""
    return {tree.path(node): float(tree.log_probs[node]) for node in range(1, len(tree))}


def climb(parents: Sequence[int], node: int) -> list[int]:
    """From a node up to the root, both included."""
    return [node] if parents[node] < 0 else [node, *climb(parents, parents[node])]
