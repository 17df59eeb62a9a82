"""Rows and requests for drafters, without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.draft.base import DraftRequest, TreeShape
from specbatch.randomness import Purpose, Stream
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree

CHAIN = TreeShape(4, 1, 4)
TREE = TreeShape(3, 3, 12)


def make_row(
    prompt: Sequence[int], output: Sequence[int] = (), index: int = 0, temperature: float = 0.0
) -> Row:
    params = SamplingParams(temperature=temperature, max_tokens=500)
    return Row(Prompt(index, f"key-{index}", None, "standard", tuple(prompt), params), output=list(output))


def ask(row: Row, shape: TreeShape = CHAIN) -> DraftRequest:
    return DraftRequest(row, shape, Stream.at(0, row.prompt.key, Purpose.TOKEN))


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tree.path(node) for node in range(1, len(tree))}
