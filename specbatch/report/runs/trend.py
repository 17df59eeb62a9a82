"""Several runs as nights: one line each, in the order they started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbatch.report.runs.figures import RunReport
from specbatch.report.runs.names import split_shared
from specbatch.report.runs.promises import ALL

_FAILED = ("rejected", "error", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Night:
    """One run in a row of runs; ``None`` where it does not say.

    Attributes:
        directory: As it was given.
        name: The same without the folders that all runs are in.
        started: Unix seconds.
        failed: Rows without a text.
        attainment: Share of rows with promises that kept them all.
        attainment_by_tier: Likewise, tiers with promises only.
        goodput_tokens_per_s: Output of rows that kept their promises, per second of engine time.
        tokens_per_s: Output of all rows: what goodput is compared with.
        goodput_tokens_per_device_hour: Per hour of the device, start-up included.
        goodput_tokens_per_joule: Without a meter, ``None``.
        e2e_p95_s: From arrival to the last token.
        not_accepted: Share of all FLOPs that went into drafts that were not accepted.
        changed: What is not as in the night before: model, policy, version.
        problems: What is missing or damaged.
        differences: Values of ``summary.json`` that the tables do not confirm.
    """

    directory: str
    name: str
    started: float | None
    state: str
    exit_code: int | None
    rows: int
    failed: int
    attainment: float | None
    attainment_by_tier: dict[str, float]
    goodput_tokens_per_s: float | None
    tokens_per_s: float | None
    goodput_tokens_per_device_hour: float | None
    goodput_tokens_per_joule: float | None
    joules: float | None
    mean_watts: float | None
    e2e_p95_s: float | None
    not_accepted: float | None
    device_seconds: float
    changed: list[str]
    problems: list[str]
    differences: int


def nights(reports: Sequence[RunReport]) -> list[Night]:
    """One line per run, by time of start; runs that do not say when are last."""
    ordered = sorted(reports, key=lambda report: (report.started is None, report.started or 0.0))
    before = [None, *ordered[:-1]]
    _, names = split_shared([report.directory for report in ordered])
    return [_night(*each) for each in zip(ordered, names, before, strict=True)]


def _night(report: RunReport, name: str, before: RunReport | None) -> Night:
    summary = report.summary
    rates, energy = summary["rates"], summary["energy"]
    promised = summary["slo"]["rows_with_slo"] > 0
    kept = {tier: each.attainment for tier, each in report.promises.items() if tier != ALL}
    return Night(
        directory=report.directory,
        name=name,
        started=report.started,
        state=report.state,
        exit_code=report.exit_code,
        rows=summary["rows"]["total"],
        failed=sum(summary["rows"]["by_status"].get(status, 0) for status in _FAILED),
        attainment=summary["slo"]["attainment"],
        attainment_by_tier={tier: share for tier, share in kept.items() if share is not None},
        goodput_tokens_per_s=rates["goodput_tokens_per_s"] if promised else None,
        tokens_per_s=rates["output_tokens_per_s"],
        goodput_tokens_per_device_hour=rates["goodput_tokens_per_device_hour"] if promised else None,
        goodput_tokens_per_joule=_number(energy.get("goodput_tokens_per_joule")),
        joules=_number(energy.get("joules")),
        mean_watts=_number(energy.get("mean_watts")),
        e2e_p95_s=summary["latency"]["e2e_s"]["p95"],
        not_accepted=report.drafts[ALL].wasted.of_flops if report.drafts[ALL].draft.tokens else None,
        device_seconds=float(summary["time"]["device_seconds"]),
        changed=[] if before is None else _changed(before, report),
        problems=report.problems,
        differences=len(report.check.differences),
    )


def _changed(before: RunReport, now: RunReport) -> list[str]:
    return [what for what in _named(now) if _named(before)[what] != _named(now)[what]]


def _named(report: RunReport) -> dict[str, object]:
    """What makes two nights comparable."""
    model = report.summary["model"]
    digest = [model.get(name) for name in ("name", "quantization", "digest")]
    return {"model": digest, "policy": report.policy, "specbatch": report.summary["specbatch"]}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
