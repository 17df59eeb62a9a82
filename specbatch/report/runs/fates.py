"""Where every drafted token went, and what that cost: tokens, FLOPs, seconds of the device, joules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from specbatch.report.runs.columns import Floats, amounts, known, share

FATES = ("unselected", "pruned", "rejected", "accepted")
"""Each drafted token has exactly one; ``trimmed`` ones are among the accepted."""

NOTHING = "nothing drafted"
"""Drafting that proposed no token at all."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of some drafted tokens, and what they cost.

    A row's drafting is shared by its drafted tokens; of verification, only what went into rejected tokens
    is counted here, since the rest wrote text.

    Attributes:
        tokens: How many.
        flops: Of drafting them, and of verifying them in vain.
        device_s: Seconds of the device; ``None`` where rows do not carry them.
        joules: ``None`` without a meter.
        of_tokens: Share of the drafted tokens; likewise of all FLOPs, attributed seconds and joules of the
            rows.
    """

    tokens: int
    flops: float
    device_s: float | None
    joules: float | None
    of_tokens: float | None
    of_flops: float | None
    of_device_s: float | None
    of_joules: float | None


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafting as a whole.

    Attributes:
        fates: Fate → cost; with ``nothing drafted`` they add up to the drafting and the rejected part.
        draft: What drafting cost, useful or not.
        wasted: Drafting and verification of everything that was not accepted.
        trimmed: Chosen tokens behind the end of a text, among the accepted ones and one more per row.
        written: Output tokens = accepted + verifications + first tokens - trimmed.
        verifications: Target passes that each added a token of their own.
        first_tokens: Tokens that came of reading the prompt.
        passes: Of a draft model or head, by rows.
    """

    fates: dict[str, Fate]
    draft: Fate
    wasted: Fate
    trimmed: int
    written: int
    verifications: int
    first_tokens: int
    passes: int


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs by row, ``[rows]`` each; NaN where a row does not carry them."""

    flops: Floats
    device_s: Floats
    joules: Floats

    def by(self, part: Floats) -> _Costs:
        """A part of each row's."""
        return _Costs(*(_product(each, part) for each in (self.flops, self.device_s, self.joules)))

    def plus(self, other: _Costs) -> _Costs:
        """Both together."""
        return _Costs(self.flops + other.flops, self.device_s + other.device_s, self.joules + other.joules)


def drafts_of(table: pa.Table) -> Drafts:
    """Sum up some rows."""
    whole, draft, in_vain = _costs(table)
    drafted = amounts(table, "drafted")
    nothing = np.zeros(table.num_rows)
    costs, tokens = {}, {}
    for fate in FATES:
        tokens[fate] = amounts(table, fate)
        part = np.divide(tokens[fate], drafted, out=nothing.copy(), where=drafted > 0)
        costs[fate] = draft.by(part)
    costs["rejected"] = costs["rejected"].plus(in_vain)
    costs[NOTHING], tokens[NOTHING] = draft.by((drafted == 0).astype(np.float64)), nothing
    lost = [name for name in costs if name != "accepted"]
    wasted = costs[lost[0]]
    for name in lost[1:]:
        wasted = wasted.plus(costs[name])
    summed = _Summing(whole, float(drafted.sum()))
    output, trimmed = amounts(table, "output_tokens"), amounts(table, "trimmed")
    verifications, accepted = amounts(table, "verifications"), tokens["accepted"]
    return Drafts(
        fates={name: summed.fate(tokens[name], costs[name]) for name in costs},
        draft=summed.fate(drafted, draft),
        wasted=summed.fate(drafted - accepted, wasted),
        trimmed=int(trimmed.sum()),
        written=int(output.sum()),
        verifications=int(verifications.sum()),
        first_tokens=int((output + trimmed - accepted - verifications).sum()),
        passes=int(amounts(table, "draft_passes").sum()),
    )


@dataclass(frozen=True, slots=True)
class _Summing:
    """Sums by which shares are counted."""

    whole: _Costs
    drafted: float

    def fate(self, tokens: Floats, costs: _Costs) -> Fate:
        flops, device_s, joules = (_sum(each) for each in (costs.flops, costs.device_s, costs.joules))
        return Fate(
            tokens=int(tokens.sum()),
            flops=flops or 0.0,
            device_s=device_s,
            joules=joules,
            of_tokens=share(float(tokens.sum()), self.drafted),
            of_flops=share(flops, _sum(self.whole.flops)),
            of_device_s=share(device_s, _sum(self.whole.device_s)),
            of_joules=share(joules, _sum(self.whole.joules)),
        )


def _costs(table: pa.Table) -> tuple[_Costs, _Costs, _Costs]:
    """Of everything, of drafting, and of verifying in vain."""
    draft_flops = amounts(table, "draft_flops")
    flops = amounts(table, "prefill_flops") + amounts(table, "verify_flops") + draft_flops
    unknown = np.full(table.num_rows, np.nan)
    device_s, draft_s, rejected_s = (
        amounts(table, name) if known(table, name) else unknown
        for name in ("device_s", "draft_s", "rejected_s")
    )
    joules = amounts(table, "energy_j") if known(table, "energy_j") else unknown
    per_second = np.divide(joules, device_s, out=np.zeros_like(joules), where=device_s > 0)
    per_second = np.where(np.isnan(joules), np.nan, per_second)
    return (
        _Costs(flops, device_s, joules),
        _Costs(draft_flops, draft_s, _product(per_second, draft_s)),
        _Costs(amounts(table, "rejected_flops"), rejected_s, _product(per_second, rejected_s)),
    )


def _product(costs: Floats, part: Floats) -> Floats:
    product: Floats = costs * part
    return product


def _sum(costs: Floats) -> float | None:
    """``None`` of what no row carries."""
    return float(costs.sum()) if len(costs) and not np.isnan(costs).any() else None
