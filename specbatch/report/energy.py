"""Where a run's time and energy went: for ``summary.json``, from the results and the attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from specbatch.report.speculation import Speculation
from specbatch.table.manifest import Attempt
from specbatch.table.schema import SHARES

COLUMNS = (*SHARES, "output_tokens", "slo_met", "prefill_flops", "verify_flops", "draft_flops", "e2e_s")
"""Columns of the results that this is computed from."""

ATTRIBUTION = (
    "a step's joules are shared by the tokens it computes for each row; "
    "what no row in the results has a share in is idle_joules"
)


class Proxies(TypedDict):
    """What energy goes with, always known: seconds of the process, of the engine's steps, and FLOPs.

    ``rejected_share_by_flops`` is the rejected part of all floating-point operations.
    """

    device_seconds: float
    attributed_seconds: float
    draft_seconds: float
    rejected_seconds: float
    flops: float
    draft_flops: float
    rejected_flops: float
    rejected_share_by_flops: float | None


class Energy(TypedDict):
    """Energy of the engine's part of all attempts, and where it went.

    Everything but ``method`` and the proxies is null without a meter, and ``reason`` says why; a run of
    which a part was not measured has no number either. ``idle_watts`` was measured before the run and is
    a part of all numbers except ``above_idle_joules``. ``idle_joules`` is the remainder: waiting, writing
    and ``lost_joules``, the work for rows that have no answer from it. The parts of a row's joules are
    as the parts of its seconds.
    """

    joules: float | None
    method: str
    scope: str | None
    reason: str | None
    attribution: str | None
    mean_watts: float | None
    peak_watts: float | None
    idle_watts: float | None
    idle_treatment: str | None
    above_idle_joules: float | None
    idle_joules: float | None
    lost_joules: float | None
    attributed_joules: float | None
    draft_joules: float | None
    rejected_joules: float | None
    joules_per_output_token: float | None
    goodput_tokens_per_joule: float | None
    proxies: Proxies


def time_shares(table: pa.Table, attempts: Sequence[Attempt]) -> dict[str, float]:
    """Split the engine's seconds: ``attributed_seconds`` of rows in the results, ``idle_seconds`` of nobody.

    They add up. ``lost_seconds`` is the part of the idle ones for rows that have no answer from it: they
    were in flight when an attempt ended, or ran again.
    """
    attributed = _total(table, "device_s")
    return {
        "attributed_seconds": attributed,
        "idle_seconds": sum(attempt.engine_seconds for attempt in attempts) - attributed,
        "lost_seconds": max(0.0, sum(attempt.attributed_s for attempt in attempts) - attributed),
    }


def energy(table: pa.Table, attempts: Sequence[Attempt], drafts: Speculation) -> Energy:
    """Sum up.

    Args:
        table: The results.
        attempts: Of the run; those without engine time took no energy that is counted.
        drafts: Account of the drafted tokens of all rows.
    """
    proxies = _proxies(table, attempts, drafts)
    working = [attempt for attempt in attempts if attempt.engine_seconds > 0]
    reason = _gap(attempts)
    if reason:
        return _unmeasured(reason, proxies)
    measured = [attempt.energy for attempt in working if attempt.energy is not None]
    joules = sum(each.joules or 0.0 for each in measured)
    attributed = _total(table, "energy_j")
    idle, treatment = _idle(working)
    seconds = sum(attempt.engine_seconds for attempt in working)
    good = pc.sum(table.filter(pc.fill_null(table.column("slo_met"), False)).column("output_tokens")).as_py()
    here = _total(table.filter(pc.is_valid(table.column("device_s"))), "output_tokens")
    return {
        "joules": joules,
        "method": measured[0].method,
        "scope": "; ".join(dict.fromkeys(each.scope or "" for each in measured)),
        "reason": None,
        "attribution": ATTRIBUTION,
        "mean_watts": joules / seconds,
        "peak_watts": max((each.peak_watts for each in measured if each.peak_watts), default=None),
        "idle_watts": idle,
        "idle_treatment": treatment,
        "above_idle_joules": None if idle is None else joules - idle * seconds,
        "idle_joules": joules - attributed,
        "lost_joules": max(0.0, sum(each.attributed_j or 0.0 for each in working) - attributed),
        "attributed_joules": attributed,
        "draft_joules": _part(table, "draft_s"),
        "rejected_joules": _part(table, "rejected_s"),
        "joules_per_output_token": _ratio(joules, here),
        "goodput_tokens_per_joule": _ratio(good or 0, joules),
        "proxies": proxies,
    }


def _gap(attempts: Sequence[Attempt]) -> str:
    """Why the run's energy is not known as a whole; empty when it is."""
    methods, missing = set(), {}
    for number, attempt in enumerate(attempts, start=1):
        if attempt.engine_seconds > 0:
            found = attempt.energy
            if found is None or found.joules is None:
                missing[number] = "it ended before the meter was read" if found is None else found.reason
            else:
                methods.add(found.method)
    if not methods:
        return "; ".join(dict.fromkeys(missing.values())) or "nothing was computed in this run"
    if missing:
        number, why = next(iter(missing.items()))
        return f"attempt {number} of {len(attempts)}: {why}"
    if len(methods) > 1:
        return f"attempts were measured in different ways ({', '.join(sorted(methods))}), which do not add up"
    return ""


def _idle(working: Sequence[Attempt]) -> tuple[float | None, str]:
    """Idle watts, and what they mean for the other numbers: the mean over time of attempts that know them."""
    known = [
        (attempt.energy.idle_watts, attempt)
        for attempt in working
        if attempt.energy is not None and attempt.energy.idle_watts is not None
    ]
    if not known:
        return None, "idle power was not measured; it is a part of all numbers"
    seconds = sum(attempt.engine_seconds for _, attempt in known)
    watts = sum(watts * attempt.engine_seconds for watts, attempt in known) / seconds
    treatment = "idle power was measured before the run; it is a part of all numbers but above_idle_joules"
    return watts, treatment


def _part(table: pa.Table, name: str) -> float:
    """Joules of a part of the rows' seconds."""
    shares = pc.divide(table.column(name), table.column("device_s"))
    ran = pc.greater(pc.fill_null(table.column("device_s"), 0.0), 0.0)
    total = pc.sum(pc.if_else(ran, pc.multiply(table.column("energy_j"), shares), 0.0)).as_py()
    return 0.0 if total is None else float(total)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None


def _unmeasured(reason: str, proxies: Proxies) -> Energy:
    return {
        "joules": None,
        "method": "none",
        "scope": None,
        "reason": reason,
        "attribution": None,
        "mean_watts": None,
        "peak_watts": None,
        "idle_watts": None,
        "idle_treatment": None,
        "above_idle_joules": None,
        "idle_joules": None,
        "lost_joules": None,
        "attributed_joules": None,
        "draft_joules": None,
        "rejected_joules": None,
        "joules_per_output_token": None,
        "goodput_tokens_per_joule": None,
        "proxies": proxies,
    }


def _proxies(table: pa.Table, attempts: Sequence[Attempt], drafts: Speculation) -> Proxies:
    flops = sum(_total(table, name) for name in ("prefill_flops", "verify_flops", "draft_flops"))
    return {
        "device_seconds": sum(attempt.seconds for attempt in attempts),
        "attributed_seconds": _total(table, "device_s"),
        "draft_seconds": _total(table, "draft_s"),
        "rejected_seconds": _total(table, "rejected_s"),
        "flops": flops,
        "draft_flops": drafts["draft_flops"],
        "rejected_flops": drafts["rejected_flops"],
        "rejected_share_by_flops": drafts["rejected_flop_share"],
    }


def _total(table: pa.Table, name: str) -> float:
    total = pc.sum(table.column(name)).as_py()
    return 0.0 if total is None else float(total)
