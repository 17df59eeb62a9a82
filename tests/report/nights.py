"""Runs to report on: real run directories, written by a job whose engine makes its answers up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specbatch.account import DeviceShare, DraftAccount
from specbatch.config import JobConfig
from specbatch.errors import RowFault
from specbatch.job.run import run_job
from specbatch.ledger import EngineStats
from specbatch.progress import Snapshot
from specbatch.report.summary import summarise
from specbatch.rows import Answer, FinishReason, Prompt, Status
from specbatch.table.decisions import Entry
from specbatch.table.manifest import Manifest
from tests.job.fake_engine import FakeEngine, World

if TYPE_CHECKING:
    from specbatch.engine.feed import Feed, Host

FIRST_NIGHT = 1_790_000_000.0
TIERS = ("interactive", "standard", "batch")
OWNERS = ("research", "billing", None)
_SPEED = {"interactive": 0.9, "standard": 2.5, "batch": 6.0}


@dataclass
class NightEngine(FakeEngine):
    """Answers that are a function of seed and row; drafts, decisions and counts that add up.

    Args:
        speed: Above 1 is faster.
        stop_after: Rows after which the process dies.
        watts: Of the device while it serves rows; no meter without.
    """

    speed: float = 1.0
    seed: int = 0
    drafts: bool = True
    stop_after: int | None = None
    watts: float | None = None
    stats: EngineStats = field(default_factory=EngineStats)

    def run(self, feed: Feed, host: Host) -> EngineStats:
        stats = self.stats
        stats.kv_page_size, stats.kv_bytes_per_token = 16, 2048
        stats.kv_pages_total, stats.kv_pages_peak, stats.draft_pages_peak = 512, 300, 24
        stats.peak_resident_bytes = 700 * 2**20
        owners: dict[str, int] = {}
        stats.calibration = {
            "overall": {
                "candidates": 2000,
                "accepted": 0.61,
                "calibrated": 0.6,
                "ece": 0.021,
                "ece_reported": 0.153,
                "brier": 0.2,
                "brier_reported": 0.3,
            }
        }
        for served, row in enumerate(feed.rows.tolist()):
            if served == self.stop_after:
                raise KeyboardInterrupt
            self._serve(row, feed, host, owners)
            host.tick(
                Snapshot(
                    "running",
                    1,
                    0,
                    stats.output_tokens,
                    owner_tokens=dict(owners),
                    attributed_s=stats.attributed_s,
                )
            )
        return stats

    def _serve(self, row: int, feed: Feed, host: Host, owners: dict[str, int]) -> None:
        try:
            prompt = feed.fetch(row)
        except RowFault as fault:
            host.refuse(row, Status.REJECTED, fault)
            return
        answer = self.made_up(prompt)
        drafts = answer.drafts
        for entry in decisions(answer, np.random.default_rng([self.seed, 7, row])):
            host.note(entry)
        verified = drafts.verified + drafts.verifications
        if prompt.owner is not None:
            owners[prompt.owner] = owners.get(prompt.owner, 0) + verified
        stats = self.stats
        stats.steps += drafts.verifications + 1
        stats.fallback_steps += row % 3
        stats.fallback = "plain decoding: the profile is of another machine"
        stats.output_tokens += answer.output_tokens
        stats.attributed_s += answer.share.device_s if answer.share is not None else 0.0
        stats.entitled_tokens["batch"] = stats.entitled_tokens.get("batch", 0.0) + 0.2 * verified
        stats.entitled_tokens["interactive"] = stats.entitled_tokens.get("interactive", 0.0) + 0.5 * verified
        if prompt.tier in stats.entitled_tokens:
            stats.achieved_tokens[prompt.tier] = stats.achieved_tokens.get(prompt.tier, 0) + verified
        host.deliver(answer)

    def made_up(self, prompt: Prompt) -> Answer:
        """The end of a row: times by its tier, a share of failures, an account of drafts."""
        draw = np.random.default_rng([self.seed, prompt.row_index])
        slow = _SPEED[prompt.tier] / self.speed * float(draw.lognormal(0.0, 0.5))
        count = int(draw.integers(4, 40))
        account = (
            drafted(draw, count)
            if self.drafts
            else DraftAccount(verifications=count - 1, accept_histogram=[count - 1])
        )
        admitted = prompt.arrival + 0.3 * slow
        first = admitted + 0.5 * slow
        failed = prompt.row_index % 29 == 28
        base = Answer(prompt.row_index, prompt.key, prompt.id, prompt.tier, Status.OK)
        answer = replace(
            base,
            finish_reason=FinishReason.STOP if count % 4 else FinishReason.LENGTH,
            status=Status.OK if count % 4 else Status.TRUNCATED,
            text="a",
            token_ids=tuple(range(count)),
            prompt_tokens=len(prompt.token_ids),
            slo=prompt.slo,
            arrival=prompt.arrival,
            admitted_at=admitted,
            first_token_at=first,
            finished_at=first + slow * count / 30,
            num_preemptions=int(prompt.row_index % 11 == 0),
            recomputed_tokens=17 * int(prompt.row_index % 11 == 0),
            target_passes=account.verifications + 1,
            prefill_flops=1e9 * len(prompt.token_ids),
            verify_flops=1e9 * (account.verified + account.verifications),
            drafts=account,
            share=self.shared(account),
        )
        if not failed:
            return answer
        message = "the model's logits are not numbers; try another number format (dtype = 'float32')"
        return replace(
            answer,
            status=Status.ERROR,
            finish_reason=None,
            text=None,
            error_code="nan_logits",
            error_message=message,
        )

    def shared(self, account: DraftAccount) -> DeviceShare:
        """Seconds and joules of a row, in proportion to its tokens."""
        draft_s = 0.0004 * account.drafted
        rejected_s = 0.002 * account.rejected
        device_s = 0.1 + draft_s + 0.003 * (account.verified + account.verifications)
        joules = None if self.watts is None else self.watts * device_s
        return DeviceShare(device_s, draft_s, rejected_s, joules)


def drafted(draw: np.random.Generator, count: int) -> DraftAccount:
    """An account of ``count`` output tokens."""
    histogram, accepted, verifications = [0, 0, 0, 0, 0], 0, 0
    while accepted + verifications < count - 1:
        taken = min(int(draw.integers(0, 5)), count - 2 - accepted - verifications)
        histogram[taken] += 1
        accepted, verifications = accepted + taken, verifications + 1
    rejected, pruned = int(draw.integers(0, 2 * verifications + 1)), int(draw.integers(0, 9))
    unselected = int(draw.integers(0, 30))
    verified = accepted + rejected
    return DraftAccount(
        drafted=unselected + pruned + verified,
        unselected=unselected,
        selected=pruned + verified,
        pruned=pruned,
        verified=verified,
        accepted=accepted,
        rejected=rejected,
        verifications=verifications,
        accept_histogram=histogram,
        draft_passes=3 * verifications,
        draft_flops=1e8 * (unselected + pruned + verified),
        rejected_flops=1e9 * rejected,
    )


def decisions(answer: Answer, draw: np.random.Generator) -> Iterator[Entry]:
    """A row's changes of mode while it ran, and its summary."""
    assert answer.first_token_at is not None
    began, key, tier = answer.first_token_at, answer.key, answer.tier
    half = (began + answer.finished_at) / 2
    accepted, steps = answer.drafts.accepted, answer.drafts.verifications
    gain = float(draw.normal(0.3, 0.1))
    yield Entry(key, "change", "pays", began, 1, tier=tier, mode="tree", steps=1, tokens=2)
    if answer.row_index % 4 == 0:
        yield Entry(key, "fallback", "no profile", half, 2, tier=tier, mode="off", steps=1, tokens=1)
    elif answer.row_index % 4 == 1:
        yield Entry(key, "change", "costs more", half, 2, tier=tier, mode="chain", steps=1, tokens=1)
    if answer.slo_met is False:
        yield Entry(key, "late", "overload", half, 2, tier=tier)
    yield Entry(
        key, "row", "pays", answer.finished_at, 3, tier=tier, mode="tree", steps=steps, needed=1.1,
        budget=64.0, drafted=answer.drafts.drafted, slo_nodes=3, extra_nodes=4,
        expected=float(accepted + steps + draw.normal(0, 2)), tokens=accepted + steps, gain=gain,
        real_gain=gain - 0.05, changes=1, fallbacks=int(answer.row_index % 4 == 0),
    )  # fmt: skip


def job(folder: Path, rows: int = 120, night: int = 0, **settings: object) -> JobConfig:
    """A job over a table of its own, with tiers that promise things and owners with quotas."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(rows)
    table = {
        "prompt": [None if row == 50 else f"night {night}, question {row}" for row in numbers],
        "id": [f"order-{row}" for row in numbers],
        "tier": [TIERS[row % 3] for row in numbers],
        "owner": pa.array([OWNERS[row // 3 % 3] for row in numbers], pa.string()),
        "arrival_s": [0.05 * row for row in numbers],
        "deadline_s": pa.array([0.05 * row + 5.0 if row % 3 == 1 else None for row in numbers], pa.float64()),
    }
    if not (folder / f"in-{night}.parquet").exists():
        pq.write_table(pa.table(table), folder / f"in-{night}.parquet")
    values: dict[str, object] = {
        "input": (str(folder / f"in-{night}.parquet"),),
        "out": folder / f"night-{night}",
        "policy": "adaserve",
        "max_failures": "10%",
        "tiers": {
            "interactive": {"priority": 0, "ttft_slo_ms": 1200, "tpot_slo_ms": 40, "share": 0.5},
            "standard": {"priority": 10},
            "batch": {"priority": 20, "share": 0.2},
        },
        "owners": {"research": {"quota": 900}, "billing": {"quota": 100000}},
        "flush_rows": 30,
        **settings,
    }
    return JobConfig.model_validate(values)


def run_night(config: JobConfig, engine: NightEngine | None = None, night: int = 0) -> Path:
    """Run it; the directory, with times that are always the same."""
    begin = FIRST_NIGHT + 86400.0 * night
    world = World(engine or NightEngine(), wall=lambda: begin)
    try:
        run_job(config, surroundings=world.surroundings())
    finally:
        assert config.out is not None
        pin(config.out)
    return config.out


def pin(directory: Path, seconds: float = 64.0, engine_seconds: float = 60.0) -> None:
    """Give every attempt the same seconds, and the summary the numbers that follow from them."""
    path = directory / "run.json"
    content: dict[str, Any] = json.loads(path.read_text())
    for number, attempt in enumerate(content["attempts"]):
        attempt.update(seconds=seconds, engine_seconds=engine_seconds, began=number * seconds)
    path.write_text(json.dumps(content))
    sum_up(directory)


def meter(directory: Path, joules: float) -> None:
    """Have the only attempt measured: so many joules, some of them nobody's."""
    path = directory / "run.json"
    content: dict[str, Any] = json.loads(path.read_text())
    (attempt,) = content["attempts"]
    attempt["energy"] = {
        "method": "rapl",
        "scope": "package-0 (all processes)",
        "reason": "",
        "joules": joules,
        "peak_watts": 31.0,
        "idle_watts": 4.0,
    }
    attempt["attributed_j"] = joules / 2
    path.write_text(json.dumps(content))
    sum_up(directory)


def sum_up(directory: Path) -> None:
    """Write the summary again, where there is one."""
    if (directory / "summary.json").is_file():
        manifest = Manifest.model_validate_json((directory / "run.json").read_text())
        summary = summarise(directory / "results.parquet", manifest)
        (directory / "summary.json").write_text(json.dumps(summary))
