"""The passes of chains behind the first: laid out before a single token of them is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from specbatch_kernels.cpu import ChainLevels, Placement

from specbatch.draft.head_entries import PageTable
from specbatch.draft.head_growth import Growth


def chain_levels(growths: Sequence[Growth], table: PageTable) -> ChainLevels:
    """One node for each row and level.

    Args:
        growths: Rows in order of falling depth, so that those that go on stand first.
        table: Their pages; node j (from 1) of a row is stored j - 1 behind its next free place.
    """
    deep = np.array([growth.levels for growth in growths])
    committed = np.array([growth.committed for growth in growths], dtype=np.int64)
    free = np.array([growth.place for growth in growths], dtype=np.int64)
    index = np.array([growth.index for growth in growths], dtype=np.int32)
    depths = np.arange(1, deep.max(initial=1))
    counts = (deep[:, None] > depths).sum(0)
    rows = np.concatenate([np.arange(count) for count in counts] or [np.zeros(0, dtype=np.int64)])
    depth = np.repeat(depths, counts)
    own = free[rows] + depth - 1
    offsets = [np.arange(count + 1) * d for count, d in zip(counts, depths, strict=True)]
    extras = [free[:count, None] + np.arange(d) for count, d in zip(counts, depths, strict=True)]
    nothing = np.zeros(0, dtype=np.int32)
    return ChainLevels(
        counts=tuple(counts.tolist()),
        placement=Placement(
            torch.from_numpy(committed[rows] - 1 + depth),
            torch.from_numpy(table.slots(index[rows], own)),
        ),
        token_row=torch.from_numpy(index[rows]),
        context_len=torch.from_numpy(committed[rows].astype(np.int32)),
        extra_offsets=torch.from_numpy(np.concatenate([nothing, *offsets]).astype(np.int32)),
        extra_positions=torch.from_numpy(np.concatenate([nothing, *map(np.ravel, extras)]).astype(np.int32)),
    )
