"""The passes of chains behind the first: laid out before a single token of them is known."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch_kernels.cpu import NOT_DRAFTED, ChainLevels

from specbatch.draft.head_entries import Entries, PageTable
from specbatch.draft.head_growth import Growth
from specbatch.tensors import float64s, int32s
from specbatch.tree import TokenTree

__all__ = ["NOT_DRAFTED", "chain_levels", "read_chain"]

_UNKNOWN = -1


def read_chain(growth: Growth, made: Sequence[tuple[int, float]]) -> TokenTree | None:
    """A row's chain, up to the first token whose path is less likely than the row asked for.

    Rows that draft together are computed as deep as any of them goes: what a row proposes does not
    depend on its company.

    Args:
        growth: The row.
        made: Token and log probability of each level that was computed.

    Returns:
        ``None`` where the head's output was not finite.
    """
    if min(token for token, _ in made) < 0:
        return None
    tokens, log_probs, path = [], [], 0.0
    for token, log_prob in made:
        tokens.append(token)
        log_probs.append(log_prob)
        path += log_prob
        if path < growth.least:
            break
    return TokenTree.chain(growth.token, tokens, log_probs)


def chain_levels(growths: Sequence[Growth], table: PageTable) -> ChainLevels:
    """One node for each row and level.

    Args:
        growths: Rows in order of falling depth, so that those that go on stand first.
        table: Their pages; node j (from 1) of a row is stored j - 1 behind its next free place.
    """
    nodes = Entries(table)
    counts: list[int] = []
    offsets: list[int] = []
    for depth in range(1, max((growth.levels for growth in growths), default=1)):
        going = [growth for growth in growths if growth.levels > depth]
        counts.append(len(going))
        offsets += range(0, depth * len(going) + 1, depth)
        for growth in going:
            position, lineage = growth.committed - 1 + depth, range(growth.place, growth.place + depth)
            nodes.add_node(growth.index, _UNKNOWN, position, growth.committed, lineage)
    return ChainLevels(
        counts=tuple(counts),
        placement=nodes.placement,
        token_row=int32s(nodes.rows),
        context_len=int32s(nodes.contexts),
        extra_offsets=int32s(offsets),
        extra_positions=int32s(nodes.extras),
        least=float64s([growth.least for growth in growths]),
    )
