"""How a run went: tokens, operations and modes of drafting in equal spans of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbatch.report.runs.columns import Floats, amounts, moments, numbers, of_tier, tiers_of

SPANS = 48
_AT_A_TIME = 65_536


@dataclass(frozen=True, slots=True)
class Course:
    """Amounts by span of time.

    A row's output is taken to be written evenly from its first to its last token, its prompt to be read
    evenly between admission and the first token: the tables hold no finer times. Sums are exact.

    Attributes:
        edges: Ends of the spans, seconds on the run clock, ``[spans + 1]``.
        tokens: Tier → output tokens, ``[spans]``.
        flops: ``prefill``, ``written`` (verification that was kept), ``rejected`` and ``draft``.
        unplaced_flops: Of rows that have no times: they failed, or are in no attempt of this run.
        attempts: When attempts began, seconds on the run clock.
    """

    edges: list[float]
    tokens: dict[str, list[float]]
    flops: dict[str, list[float]]
    unplaced_flops: float
    attempts: list[float]


def course_of(table: pa.Table, epoch: float, attempts: list[float]) -> Course | None:
    """Amounts over time; ``None`` when no row has run.

    Args:
        table: Rows.
        epoch: Unix time of the run clock's zero.
        attempts: When attempts began, seconds on the run clock.
    """
    ran = table.filter(pc.is_valid(table.column("e2e_s")))
    if not ran.num_rows:
        return None
    arrival = moments(ran, "arrival") - epoch
    end = arrival + numbers(ran, "e2e_s")
    first = np.fmin(arrival + numbers(ran, "ttft_s"), end)
    admitted = np.fmin(arrival + np.nan_to_num(numbers(ran, "queued_s")), first)
    edges = np.linspace(min(0.0, float(admitted.min())), float(end.max()) or 1.0, SPANS + 1)
    rejected, verify = amounts(ran, "rejected_flops"), amounts(ran, "verify_flops")
    tokens = {}
    for tier in tiers_of(ran):
        mine = pc.equal(ran.column("tier"), tier).to_numpy()
        written = amounts(of_tier(ran, tier), "output_tokens")
        tokens[tier] = spread(edges, first[mine], end[mine], written).tolist()
    flops = {
        "prefill": spread(edges, admitted, first, amounts(ran, "prefill_flops")),
        "written": spread(edges, first, end, verify - rejected),
        "rejected": spread(edges, first, end, rejected),
        "draft": spread(edges, first, end, amounts(ran, "draft_flops")),
    }
    everything = sum(float(amounts(table, f"{name}_flops").sum()) for name in ("prefill", "verify", "draft"))
    placed = sum(float(values.sum()) for values in flops.values())
    return Course(
        edges=edges.tolist(),
        tokens=tokens,
        flops={name: values.tolist() for name, values in flops.items()},
        unplaced_flops=max(0.0, everything - placed) if everything - placed > 1e-9 * everything else 0.0,
        attempts=attempts,
    )


def spread(edges: Floats, begin: Floats, end: Floats, amount: Floats) -> Floats:
    """Share amounts evenly over intervals, and sum them up by span.

    Args:
        edges: Ends of the spans, rising; they cover all intervals; ``[spans + 1]``.
        begin: Of each interval, ``[n]``.
        end: Likewise; an interval without length counts where it is.
        amount: ``[n]``.

    Returns:
        Sums, ``[spans]``.
    """
    sums = np.zeros(len(edges) - 1)
    for start in range(0, len(begin), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        length = np.maximum(end[some] - begin[some], 0.0)
        since = edges[None, :] - begin[some, None]
        with np.errstate(over="ignore"):  # next to no length: infinitely far behind it, which is the end
            share = since / np.where(length > 0, length, 1.0)[:, None]
        done = np.where(length[:, None] > 0, np.clip(share, 0.0, 1.0), (since > 0).astype(np.float64))
        done[:, 0], done[:, -1] = 0.0, 1.0
        sums += (amount[some] @ np.diff(done, axis=1)).astype(np.float64)
    return sums
