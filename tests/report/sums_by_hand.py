"""Sums over rows as plain arithmetic, for :mod:`tests.report.by_hand`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Rows = Sequence[Row]

COUNTS = (
    *("drafted", "unselected", "selected", "pruned", "verified", "accepted", "rejected", "trimmed"),
    *("verifications", "draft_passes"),
)
FATES = ("unselected", "pruned", "rejected", "accepted")


def total(rows: Rows, name: str) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    return math.fsum(values) if any(isinstance(value, float) for value in values) else sum(values)


def slo(rows: Rows) -> dict[str, Any]:
    promised = [row["slo_met"] for row in rows if row["slo_met"] is not None]
    timed = [row["deadline_met"] for row in rows if row["deadline_met"] is not None]
    return {
        "rows_with_slo": len(promised),
        "rows_attained": sum(promised),
        "attainment": sum(promised) / len(promised) if promised else None,
        "rows_with_deadline": len(timed),
        "deadlines_met": sum(timed),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between ranks."""
    place = (len(values) - 1) * share
    low, high = values[math.floor(place)], values[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def latency(rows: Rows) -> dict[str, Any]:
    found = {}
    for name in ("queued_s", "ttft_s", "tpot_ms", "e2e_s"):
        values = sorted(row[name] for row in rows if row[name] is not None)
        found[name] = {f"p{share}": quantile(values, share / 100) for share in (50, 95, 99)}
    return found


def misses(rows: Rows) -> dict[str, Any]:
    return {
        "missed": dict(Counter(row["miss_reason"] for row in rows if row["miss_reason"])),
        "moved": dict(Counter(row["tier_reason"] for row in rows if row["tier_reason"])),
        "verified_tokens": total(rows, "verified") + total(rows, "verifications"),
    }


def speculation(rows: Rows) -> dict[str, Any]:
    counts = {name: total(rows, name) for name in COUNTS}
    lists = [row["accept_histogram"] or [] for row in rows]
    histogram = [sum(each[at] for each in lists if at < len(each)) for at in range(max(map(len, lists)))]
    passes, flops = (
        counts["verifications"],
        [total(rows, f"{n}_flops") for n in ("prefill", "verify", "draft")],
    )
    in_vain = total(rows, "draft_flops") * (1 - counts["accepted"] / counts["drafted"])
    return {
        **counts,
        "accept_histogram": histogram,
        "accepted_by_depth": [sum(histogram[depth:]) for depth in range(1, len(histogram))],
        "accepted_per_pass": counts["accepted"] / passes,
        "tokens_per_pass": 1 + counts["accepted"] / passes,
        "acceptance": counts["accepted"] / counts["verified"],
        "draft_flops": total(rows, "draft_flops"),
        "rejected_flops": total(rows, "rejected_flops"),
        "rejected_draft_flops": in_vain,
        "rejected_flop_share": (total(rows, "rejected_flops") + in_vain) / sum(flops),
    }


def drafts(rows: Rows) -> dict[str, Any]:
    """Row by row: drafting is shared by drafted tokens, verification in vain belongs to the rejected."""
    ran = [row for row in rows if row["device_s"] is not None]
    drafted = total(rows, "drafted")

    def part(fate: str) -> Callable[[Row], float]:
        return lambda row: row[fate] / row["drafted"] if row["drafted"] else 0.0

    def cost(share: Callable[[Row], float], in_vain: float, tokens: int) -> dict[str, Any]:
        joules = [row["energy_j"] for row in ran]
        own = {
            "flops": math.fsum(
                share(row) * row["draft_flops"] + in_vain * row["rejected_flops"] for row in ran
            ),
            "device_s": math.fsum(share(row) * row["draft_s"] + in_vain * row["rejected_s"] for row in ran),
            "joules": None
            if None in joules
            else math.fsum(
                row["energy_j"]
                / row["device_s"]
                * (share(row) * row["draft_s"] + in_vain * row["rejected_s"])
                for row in ran
            ),
        }
        whole = {
            "flops": math.fsum(
                row["prefill_flops"] + row["verify_flops"] + row["draft_flops"] for row in ran
            ),
            "device_s": total(ran, "device_s"),
            "joules": None if None in joules else math.fsum(joules),
        }
        of = {f"of_{name}": None if own[name] is None else own[name] / whole[name] for name in own}
        return {"tokens": tokens, **own, "of_tokens": tokens / drafted, **of}

    fates = {fate: cost(part(fate), float(fate == "rejected"), total(rows, fate)) for fate in FATES}
    fates["nothing drafted"] = cost(lambda row: float(row["drafted"] == 0), 0.0, 0)
    lost = drafted - total(rows, "accepted")
    written, passes = total(rows, "output_tokens"), total(rows, "verifications")
    return {
        "fates": fates,
        "draft": cost(lambda _row: 1.0, 0.0, drafted),
        "wasted": cost(lambda row: 1.0 - part("accepted")(row), 1.0, lost),
        "trimmed": total(rows, "trimmed"),
        "written": written,
        "verifications": passes,
        "first_tokens": written + total(rows, "trimmed") - total(rows, "accepted") - passes,
        "passes": total(rows, "draft_passes"),
    }


def use(rows: Rows) -> dict[str, Any]:
    joules = [row["energy_j"] for row in rows if row["energy_j"] is not None]
    return {
        "rows": len(rows),
        "failed": sum(row["status"] not in ("ok", "truncated") for row in rows),
        "output_tokens": total(rows, "output_tokens"),
        "verified_tokens": total(rows, "verified") + total(rows, "verifications"),
        "device_s": total(rows, "device_s"),
        "joules": math.fsum(joules) if joules else None,
    }
