"""Figures of one run, by tier and in total, and what repeats make of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specbatch.account import DraftAccount
from specbatch.bench.once import Run
from specbatch.report.summary import LATENCIES, QUANTILES, quantiles
from specbatch.rows import Answer, Prompt

TOTAL = "total"
LATENCY_FIGURES = tuple(f"{name}_p{q}" for name in LATENCIES[1:] for q in QUANTILES)
TIER_FIGURES = (
    *("attainment", "goodput_tokens_per_s", "output_tokens_per_s"),
    *("accepted_per_pass", "rejected_share"),
    *LATENCY_FIGURES,
)
"""Shares are 0 to 1; rates are over the whole run, waiting for arrivals included."""

RUN_FIGURES = (
    *("selection_share", "rested_per_step", "flops_per_token", "joules_per_token", "steps", "seconds"),
    "others_cpu_share",
)
"""Of a run as a whole. ``selection_share``: time that deferral, selection and calibration take, as a share of
the time with something to do. ``flops_per_token``: of target and drafter, for each output token."""

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """From one value a repeat; ``None`` where no repeat has one."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "min": self.low, "max": self.high}


def figures(run: Run, prompts: Sequence[Prompt], tiers: Sequence[str]) -> dict[str, Figures]:
    """Figures by tier, and of all rows under :data:`TOTAL`.

    Args:
        run: The run.
        prompts: Its rows with the promises that count, whatever the engine made of them.
        tiers: In the order wanted; those without rows are left out.
    """
    judged = [
        replace(answer, slo=prompt.slo, tier=prompt.tier)
        for answer, prompt in zip(run.answers, prompts, strict=True)
    ]
    found = {
        tier: _figures([answer for answer in judged if answer.tier == tier], run.seconds)
        for tier in tiers
        if any(prompt.tier == tier for prompt in prompts)
    }
    busy, stats = run.seconds - run.idle_s, run.stats
    flops = stats.prefill_flops + stats.verify_flops + stats.drafts.draft_flops
    whole: Figures = {
        "selection_share": stats.select_s / busy if busy > 0.0 else None,
        "rested_per_step": stats.rested / stats.steps if stats.steps else None,
        "flops_per_token": flops / stats.output_tokens if stats.output_tokens else None,
        "joules_per_token": run.joules / stats.output_tokens
        if run.joules is not None and stats.output_tokens
        else None,
        "steps": float(stats.steps),
        "others_cpu_share": run.others_share,
        "seconds": run.seconds,
    }
    return {**found, TOTAL: _figures(judged, run.seconds) | whole}


def over_repeats(each: Sequence[Mapping[str, Figures]]) -> dict[str, dict[str, Spread | None]]:
    """Spread of every figure over runs of one policy: tier → figure → spread."""
    return {
        tier: {name: Spread.of(found[tier][name] for found in each) for name in each[0][tier]}
        for tier in each[0]
    }


def ratio(
    ours: Sequence[Mapping[str, Figures]], theirs: Sequence[Mapping[str, Figures]], name: str
) -> Spread | None:
    """A figure of all rows against that of another policy, within each repeat; ``None`` where undefined."""
    ratios = []
    for mine, other in zip(ours, theirs, strict=True):
        above, below = mine[TOTAL][name], other[TOTAL][name]
        ratios.append(above / below if above is not None and below else None)
    return Spread.of(ratios)


def _figures(answers: Sequence[Answer], seconds: float) -> Figures:
    promised = [answer for answer in answers if answer.slo_met is not None]
    kept = [answer for answer in promised if answer.slo_met]
    drafts = [answer.drafts for answer in answers]
    passes, verified = _sum(drafts, "verifications"), _sum(drafts, "verified")
    found: Figures = {
        "attainment": len(kept) / len(promised) if promised else None,
        "goodput_tokens_per_s": _tokens(kept) / seconds if promised else None,
        "output_tokens_per_s": _tokens(answers) / seconds,
        "accepted_per_pass": _sum(drafts, "accepted") / passes if passes else None,
        "rejected_share": _sum(drafts, "rejected") / verified if verified else None,
    }
    for name in LATENCIES[1:]:
        values = [getattr(answer, name) for answer in answers]
        points = quantiles(value for value in values if value is not None)
        found |= {f"{name}_{quantile}": value for quantile, value in points.items()}
    return found


def _tokens(answers: Iterable[Answer]) -> int:
    return sum(answer.output_tokens for answer in answers)


def _sum(accounts: Iterable[DraftAccount], name: str) -> int:
    return sum(getattr(account, name) for account in accounts)
