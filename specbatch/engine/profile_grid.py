"""What a profile measures, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specbatch.hardware.measure import Effort


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes to measure, the most important first: where time or memory ends, the last are left out.

    Attributes:
        name: What the profile is called afterwards.
        tokens: Of a target pass, as one row's tree and as one token each of so many rows; doublings
            first, so that each expected time follows from one that was not much shorter.
        contexts: Committed tokens of each row.
        draft_rows: Rows that draft together.
        widths: Nodes expanded per draft level.
        chunks: Prompt tokens, besides the job's own chunk.
        checks: (rows, tokens of each, context) of passes that test the table instead of making it.
        effort: Seconds and repeats.
        kv_bytes: Keys and values that are touched at most.
    """

    name: Literal["short", "full"]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    draft_rows: tuple[int, ...]
    widths: tuple[int, ...]
    chunks: tuple[int, ...]
    checks: tuple[tuple[int, int, int], ...]
    effort: Effort
    kv_bytes: int


SHORT = Grid(
    name="short",
    tokens=(1, 2, 4, 8, 16, 32, 64),
    contexts=(64, 256),
    draft_rows=(1, 4, 16, 64),
    widths=(1, 4),
    chunks=(32,),
    checks=(),
    effort=Effort(seconds=4.0, repeats=7),
    kv_bytes=1 << 29,
)
"""Before the first run with a pair of models: some seconds at most."""

FULL = Grid(
    name="full",
    tokens=(1, 2, 4, 8, 16, 32, 64, 128, 3, 6, 12, 24, 48, 96, 5),
    contexts=(64, 512, 2048),
    draft_rows=(1, 2, 4, 8, 16, 32, 64),
    widths=(1, 4, 8),
    chunks=(16, 64),
    checks=((4, 4, 256), (8, 3, 64), (16, 4, 128), (2, 8, 512), (24, 1, 256)),
    effort=Effort(seconds=60.0, repeats=5),
    kv_bytes=1 << 32,
)
"""By ``specbatch profile``."""

LEVELS = (1, 3)
"""Depths of measured drafts; what a level costs is their difference."""

DRAFT_CONTEXT = 64
"""Committed tokens of rows that draft: a head's own attention is a small part of its pass."""
