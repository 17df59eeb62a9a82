"""What became of drafted tokens, summed over rows: for ``summary.json``, in total and per tier."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbatch.table.schema import DRAFT_COUNTS, HISTOGRAM

COLUMNS = (*DRAFT_COUNTS, HISTOGRAM, "draft_flops", "rejected_flops")
"""Columns of the results that this is computed from, beside ``prefill_flops`` and ``verify_flops``."""


class Speculation(TypedDict):
    """The account of drafted tokens; fields as in :class:`specbatch.account.DraftAccount`.

    ``accepted_by_depth`` counts the verifications that accepted at least 1, 2, … tokens. A pass is a
    verification: ``tokens_per_pass`` is what it added to a text on average, ``accepted_per_pass``
    without the token that every pass adds. ``rejected_draft_flops`` is the part of ``draft_flops``
    for tokens that were not accepted, and ``rejected_flop_share`` what both rejected parts are of all
    floating-point operations.
    """

    drafted: int
    unselected: int
    selected: int
    pruned: int
    verified: int
    accepted: int
    rejected: int
    trimmed: int
    verifications: int
    draft_passes: int
    accept_histogram: list[int]
    accepted_by_depth: list[int]
    accepted_per_pass: float | None
    tokens_per_pass: float | None
    acceptance: float | None
    draft_flops: float
    rejected_flops: float
    rejected_draft_flops: float
    rejected_flop_share: float | None


def speculation(table: pa.Table) -> Speculation:
    """Sum up some rows of the results."""
    counts = {name: int(_total(table, name)) for name in DRAFT_COUNTS}
    histogram = _histogram(table)
    draft_flops, rejected_flops = _total(table, "draft_flops"), _total(table, "rejected_flops")
    wasted = draft_flops * (1.0 - _share(counts["accepted"], counts["drafted"])) if draft_flops else 0.0
    everything = _total(table, "prefill_flops") + _total(table, "verify_flops") + draft_flops
    accepted_per_pass = counts["accepted"] / counts["verifications"] if counts["verifications"] else None
    return {
        "drafted": counts["drafted"],
        "unselected": counts["unselected"],
        "selected": counts["selected"],
        "pruned": counts["pruned"],
        "verified": counts["verified"],
        "accepted": counts["accepted"],
        "rejected": counts["rejected"],
        "trimmed": counts["trimmed"],
        "verifications": counts["verifications"],
        "draft_passes": counts["draft_passes"],
        "accept_histogram": histogram,
        "accepted_by_depth": np.cumsum(histogram[:0:-1])[::-1].tolist(),
        "accepted_per_pass": accepted_per_pass,
        "tokens_per_pass": None if accepted_per_pass is None else 1.0 + accepted_per_pass,
        "acceptance": _share(counts["accepted"], counts["verified"]) if counts["verified"] else None,
        "draft_flops": draft_flops,
        "rejected_flops": rejected_flops,
        "rejected_draft_flops": wasted,
        "rejected_flop_share": (rejected_flops + wasted) / everything if everything else None,
    }


def _histogram(table: pa.Table) -> list[int]:
    """Sum of the rows' histograms, which differ in length."""
    lengths = pc.list_value_length(table.column(HISTOGRAM)).fill_null(0).to_numpy()
    counts = pc.list_flatten(table.column(HISTOGRAM)).to_numpy()
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.arange(len(counts)) - starts
    totals: list[int] = np.bincount(places, weights=counts).astype(np.int64).tolist() if len(counts) else []
    return totals


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _total(table: pa.Table, name: str) -> float:
    total = pc.sum(table.column(name)).as_py()
    return 0.0 if total is None else float(total)
