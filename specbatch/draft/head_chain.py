"""The passes of chains behind the first: laid out before a single token of them is known."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch_kernels.cpu import ChainLevels

from specbatch.draft.head_entries import Entries, PageTable
from specbatch.draft.head_growth import Growth
from specbatch.tensors import int32s

_UNKNOWN = -1


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
    )
