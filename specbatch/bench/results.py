"""What a comparison comes to: figures of every policy, and ratios with what they are ratios to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specbatch.bench.figures import TOTAL, Figures, Spread, figures, over_repeats, ratio
from specbatch.bench.rounds import Rounds
from specbatch.energy.meter import EnergyMeter, NoMeter
from specbatch.hardware.correction import PredictionError
from specbatch.policy import counts_with_costs

GOODPUT, THROUGHPUT = "goodput_tokens_per_s", "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy on one case.

    Attributes:
        by_tier: Tier → figure → spread over repeats; all rows under ``total``.
        to_off: Throughput against plain decoding, within each repeat; ``None`` where that did not run.
        joules_to_off: Joules per output token against plain decoding, likewise; ``None`` without a meter.
        to_best: Goodput (throughput, where nothing is promised) against the best baseline, likewise.
        differing_rows: Rows whose text is not that of the first policy.
        notice: Why it decoded plainly although it is meant to do more; empty when it did not.
        pass_error: How far predicted target passes were from real ones, medians over repeats.
        draft_error: Likewise of drafts.
    """

    policy: str
    by_tier: dict[str, dict[str, Spread | None]]
    to_off: Spread | None
    joules_to_off: Spread | None
    to_best: Spread | None
    differing_rows: int
    notice: str
    pass_error: PredictionError | None
    draft_error: PredictionError | None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """All policies on one case.

    Attributes:
        rounds: The runs.
        best: The best baseline; ``None`` when there is none.
        measure: The figure that it is best in.
        policies: By name.
    """

    rounds: Rounds
    best: str | None
    measure: str
    policies: dict[str, PolicyResult]


def is_baseline(policy: str) -> bool:
    """Whether a policy is something that people use today: it does not count with measured costs."""
    return not counts_with_costs(policy)


def judge(rounds: Rounds) -> CaseResult:
    """Figures and ratios of a case."""
    tiers = sorted(rounds.case.job.tiers, key=lambda name: rounds.case.job.tiers[name].priority)
    each = {
        policy: [figures(runs[policy], rounds.prompts, tiers) for runs in rounds.rounds]
        for policy in rounds.policies
    }
    spreads = {policy: over_repeats(found) for policy, found in each.items()}
    promised = any(spread[TOTAL]["attainment"] is not None for spread in spreads.values())
    measure = GOODPUT if promised else THROUGHPUT
    best = _best(spreads, measure)
    return CaseResult(
        rounds,
        best,
        measure,
        {policy: _result(rounds, policy, each, (best, measure)) for policy in rounds.policies},
    )


def _best(spreads: dict[str, dict[str, dict[str, Spread | None]]], measure: str) -> str | None:
    """The baseline with the highest median of a figure."""
    medians = {
        policy: spread.median
        for policy, by_tier in spreads.items()
        if is_baseline(policy) and (spread := by_tier[TOTAL][measure]) is not None
    }
    return max(medians, key=medians.__getitem__, default=None)


def _result(
    rounds: Rounds, policy: str, each: dict[str, list[dict[str, Figures]]], against: tuple[str | None, str]
) -> PolicyResult:
    best, measure = against
    runs = [round_[policy] for round_ in rounds.rounds]
    return PolicyResult(
        policy=policy,
        by_tier=over_repeats(each[policy]),
        to_off=ratio(each[policy], each["off"], THROUGHPUT) if "off" in each else None,
        joules_to_off=ratio(each[policy], each["off"], "joules_per_token") if "off" in each else None,
        to_best=None if best is None else ratio(each[policy], each[best], measure),
        differing_rows=rounds.differing_rows(policy),
        notice=next((run.stats.policy_notice for run in runs if run.stats.policy_notice), ""),
        pass_error=_typical([run.pass_error for run in runs]),
        draft_error=_typical([run.draft_error for run in runs]),
    )


def _typical(errors: Sequence[PredictionError | None]) -> PredictionError | None:
    """Medians of what repeats found."""
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return PredictionError(
        sum(error.steps for error in known),
        *(statistics.median(getattr(error, name) for error in known) for name in ("median", "p90", "bias")),
    )


def energy_of(meter: EnergyMeter | NoMeter) -> dict[str, str | None]:
    """How joules come about and what they cover, or why there are none."""
    if isinstance(meter, NoMeter):
        return {"method": "none", "scope": None, "reason": meter.reason}
    return {"method": meter.method, "scope": meter.scope, "reason": None}


def as_dict(result: CaseResult) -> dict[str, object]:
    """For ``--json``: times in the unit that a name ends with, shares 0 to 1."""
    rounds = result.rounds
    return {
        "name": rounds.case.name,
        "rows": len(rounds.prompts),
        "rows_in_flight": rounds.case.job.max_rows_in_flight,
        "repeats": len(rounds.rounds),
        "plain_decoding": None if rounds.plain is None else asdict(rounds.plain),
        "promises_s": rounds.case.promises(rounds.plain),
        "energy": energy_of(rounds.meter),
        "best_baseline": {"policy": result.best, "by": result.measure},
        "policies": {name: _policy_dict(each) for name, each in result.policies.items()},
    }


def _policy_dict(result: PolicyResult) -> dict[str, object]:
    tiers = {
        tier: {name: None if spread is None else spread.as_dict() for name, spread in found.items()}
        for tier, found in result.by_tier.items()
    }
    total = tiers.pop(TOTAL)
    return {
        TOTAL: total,
        "tiers": tiers,
        "throughput_to_off": None if result.to_off is None else result.to_off.as_dict(),
        "joules_per_token_to_off": None if result.joules_to_off is None else result.joules_to_off.as_dict(),
        "to_best_baseline": None if result.to_best is None else result.to_best.as_dict(),
        "differing_rows": result.differing_rows,
        "notice": result.notice,
        "pass_prediction": None if result.pass_error is None else asdict(result.pass_error),
        "draft_prediction": None if result.draft_error is None else asdict(result.draft_error),
    }
