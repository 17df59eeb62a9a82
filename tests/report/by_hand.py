"""The numbers of a report once more, from the files alone: pyarrow and plain arithmetic, none of our code."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.report.sums_by_hand import Rows, drafts, latency, misses, slo, speculation, total, use

STATUSES = ("ok", "truncated", "rejected", "error", "expired", "cancelled")


def same(found: Any, wanted: Any, path: str = "", tolerance: float = 1e-9) -> list[str]:
    """What is not equal, by path; numbers to a relative tolerance."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        names = [*wanted, *(name for name in found if name not in wanted)]
        pairs: Iterable[tuple[Any, Any, Any]] = (
            (name, found.get(name, "absent"), wanted.get(name, "absent")) for name in names
        )
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = ((place, found[place], wanted[place]) for place in range(len(wanted)))
    elif isinstance(wanted, float) and isinstance(found, int | float):
        close = math.isclose(found, wanted, rel_tol=tolerance, abs_tol=1e-9)
        return [] if close else [f"{path}: {found}, not {wanted}"]
    else:
        return [] if found == wanted else [f"{path}: {found!r}, not {wanted!r}"]
    return [each for name, old, new in pairs for each in same(old, new, f"{path}.{name}", tolerance)]


ENERGY = (
    *("joules", "mean_watts", "peak_watts", "idle_watts", "above_idle_joules", "idle_joules", "lost_joules"),
    *("attributed_joules", "draft_joules", "rejected_joules", "joules_per_output_token"),
    "goodput_tokens_per_joule",
)
"""Fields of the energy that are numbers."""


class ByHand:
    """Everything about one finished run directory.

    Args:
        directory: Of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.rows: Rows = pq.read_table(directory / "results.parquet").to_pylist()
        self.decisions: Rows = pq.read_table(directory / "decisions.parquet").to_pylist()
        self.run: Mapping[str, Any] = json.loads((directory / "run.json").read_text())
        self.attempts: Rows = self.run["attempts"]
        self.engine_s = sum(attempt["engine_seconds"] for attempt in self.attempts)
        self.device_s = sum(attempt["seconds"] for attempt in self.attempts)
        self.stats: dict[str, Any] = self.attempts[-1]["stats"]
        assert len(self.attempts) == 1, "one attempt, so that nothing is to be added up"

    def tiers(self) -> dict[str, Rows]:
        return {
            name: [row for row in self.rows if row["tier"] == name]
            for name in sorted({row["tier"] for row in self.rows})
        }

    def summary(self) -> dict[str, Any]:
        """``summary`` without texts and versions."""
        rows = self.rows
        met = [row for row in rows if row["slo_met"]]
        free = [row for row in rows if row["slo_met"] is None and row["status"] in ("ok", "truncated")]
        return {
            "rows": {
                "total": len(rows),
                "by_status": {status: sum(row["status"] == status for row in rows) for status in STATUSES},
            },
            "tokens": {
                "prompt": total(rows, "prompt_tokens"),
                "cached_prompt": total(rows, "cached_prompt_tokens"),
                "output": total(rows, "output_tokens"),
                "recomputed": total(rows, "recomputed_tokens"),
            },
            "slo": slo(rows),
            "rates": {
                "output_tokens_per_s": total(rows, "output_tokens") / self.engine_s,
                "goodput_tokens_per_s": total(met, "output_tokens") / self.engine_s,
                "without_slo_tokens_per_s": total(free, "output_tokens") / self.engine_s,
                "goodput_tokens_per_device_hour": total(met, "output_tokens") / (self.device_s / 3600),
            },
            "latency": latency(rows),
            "tiers": {name: self._tier(mine) for name, mine in self.tiers().items()},
            "speculation": speculation(rows),
            "promises": misses(rows),
            "shares": self.shares(),
            "compute": {
                name: float(total(rows, name))
                for name in (
                    "prefill_flops",
                    "verify_flops",
                    "draft_flops",
                    "rejected_flops",
                    "target_passes",
                )
            },
            "time": self.time(),
            "energy": self.energy(),
            "memory": {
                name: self.stats[name]
                for name in self.stats
                if name in ("draft_pages_peak", "peak_resident_bytes") or name.startswith("kv_")
            },
        }

    def _tier(self, mine: Rows) -> dict[str, Any]:
        return {
            "rows": len(mine),
            "output_tokens": total(mine, "output_tokens"),
            "slo": slo(mine),
            "latency": latency(mine),
            "speculation": speculation(mine),
            "promises": misses(mine),
        }

    def shares(self) -> dict[str, Any]:
        due, had = (
            {name.split(".")[1]: float(value) for name, value in self.stats.items() if name.startswith(kind)}
            for kind in ("entitled_tokens.", "achieved_tokens.")
        )
        ratios = [had[name] / due[name] for name in due]
        jain = sum(ratios) ** 2 / (len(ratios) * sum(each * each for each in ratios))
        return {"entitled_tokens": due, "achieved_tokens": had, "fairness": jain}

    def time(self) -> dict[str, Any]:
        shared = math.fsum(row["device_s"] or 0.0 for row in self.rows)
        return {
            "attempts": 1,
            "engine_seconds": self.engine_s,
            "device_seconds": self.device_s,
            "attributed_seconds": shared,
            "idle_seconds": self.engine_s - shared,
            "lost_seconds": max(0.0, self.attempts[0]["attributed_s"] - shared),
        }

    def energy(self) -> dict[str, Any]:
        """What the meter showed and what became of it; without one, everything is null but the proxies."""
        ran = [row for row in self.rows if row["device_s"] is not None]
        flops = [total(self.rows, f"{name}_flops") for name in ("prefill", "verify", "draft")]
        proxies = {
            "device_seconds": self.device_s,
            "attributed_seconds": total(ran, "device_s"),
            "draft_seconds": total(ran, "draft_s"),
            "rejected_seconds": total(ran, "rejected_s"),
            "flops": sum(flops),
            "draft_flops": flops[2],
            "rejected_flops": total(self.rows, "rejected_flops"),
            "rejected_share_by_flops": speculation(self.rows)["rejected_flop_share"],
        }
        meter = self.attempts[0]["energy"] or {}
        joules = meter.get("joules")
        if joules is None:
            return {**dict.fromkeys(ENERGY), "proxies": proxies}
        mine = total(ran, "energy_j")
        parts = [
            math.fsum(row["energy_j"] * row[name] / row["device_s"] for row in ran)
            for name in ("draft_s", "rejected_s")
        ]
        good = total([row for row in self.rows if row["slo_met"]], "output_tokens")
        return {
            "joules": joules,
            "mean_watts": joules / self.engine_s,
            "peak_watts": meter["peak_watts"],
            "idle_watts": meter["idle_watts"],
            "above_idle_joules": joules - meter["idle_watts"] * self.engine_s,
            "idle_joules": joules - mine,
            "lost_joules": max(0.0, self.attempts[0]["attributed_j"] - mine),
            "attributed_joules": mine,
            "draft_joules": parts[0],
            "rejected_joules": parts[1],
            "joules_per_output_token": joules / total(ran, "output_tokens"),
            "goodput_tokens_per_joule": good / joules,
            "proxies": proxies,
        }

    def promises(self) -> dict[str, Any]:
        """``promises`` without definitions."""
        return {name: self._kept(mine) for name, mine in {**self.tiers(), "all": self.rows}.items()}

    def _kept(self, rows: Rows) -> dict[str, Any]:
        counted, good = slo(rows), [row for row in rows if row["slo_met"]]
        promised, attained = counted["rows_with_slo"], counted["rows_attained"]
        missed = promised - attained
        return {
            "rows": len(rows),
            "with_slo": promised,
            "attained": attained,
            "missed": missed,
            "missed_by_reason": misses(rows)["missed"],
            "moved_by_reason": misses(rows)["moved"],
            "attainment": counted["attainment"],
            "violation_ratio": missed / promised if promised else None,
            "output_tokens": total(rows, "output_tokens"),
            "attained_tokens": total(good, "output_tokens"),
            "tokens_per_s": total(rows, "output_tokens") / self.engine_s,
            "goodput_tokens_per_s": total(good, "output_tokens") / self.engine_s,
            "verified_tokens": misses(rows)["verified_tokens"],
        }

    def drafts(self) -> dict[str, Any]:
        return {name: drafts(mine) for name, mine in {**self.tiers(), "all": self.rows}.items()}

    def owners(self) -> list[dict[str, Any]]:
        recorded, limits = self.attempts[-1]["owner_tokens"], self.run["config"]["owners"]
        found = []
        for owner in {row["owner"] for row in self.rows}:
            mine = [row for row in self.rows if row["owner"] == owner]
            quota = limits.get(owner, {}).get("quota")
            found.append(
                {
                    "owner": owner,
                    "whole": use(mine),
                    "quota": quota,
                    "recorded_tokens": recorded.get(owner),
                    "tiers": {
                        name: use([row for row in mine if row["tier"] == name])
                        for name in sorted({row["tier"] for row in mine})
                    },
                    "of_quota": recorded[owner] / quota if quota else None,
                }
            )
        return sorted(found, key=lambda each: (each["owner"] is None, -each["whole"]["verified_tokens"]))

    def choices(self) -> dict[str, Any]:
        """``choices`` without what depends on spans of time."""
        events: dict[str, dict[str, int]] = defaultdict(dict)
        told = Counter((line["event"], line["reason"]) for line in self.decisions if line["event"] != "row")
        for (event, reason), lines in told.items():
            events[event][reason] = lines
        ends = [line for line in self.decisions if line["event"] == "row"]
        sure = [line for line in ends if line["expected"] is not None and not line["fallbacks"]]
        expected, came = (math.fsum(line[name] for line in sure) for name in ("expected", "tokens"))
        far = [abs(line["expected"] - line["tokens"]) / line["steps"] for line in sure]
        steps = sum(line["steps"] for line in ends)
        return {
            "events": dict(events),
            "fallback_steps": sum(line["fallbacks"] for line in ends),
            "expected_tokens": expected,
            "tokens": int(came),
            "calibration_error": expected / came - 1,
            "row_error": math.fsum(far) / len(far),
            "predicted_gain": math.fsum(line["gain"] * line["steps"] for line in ends) / steps,
            "real_gain": math.fsum(line["real_gain"] * line["steps"] for line in ends) / steps,
        }

    def memory(self) -> dict[str, Any]:
        page = self.stats["kv_page_size"]
        each = page * self.stats["kv_bytes_per_token"]
        ran = [row["prompt_tokens"] + row["output_tokens"] for row in self.rows if row["target_passes"]]
        return {
            "peak_resident": self.stats["peak_resident_bytes"],
            "kv_peak": each * self.stats["kv_pages_peak"],
            "kv_total": each * self.stats["kv_pages_total"],
            "tree_peak": each * self.stats["draft_pages_peak"],
            "fragmentation": 1 - sum(ran) / sum(-(-tokens // page) * page for tokens in ran),
        }
