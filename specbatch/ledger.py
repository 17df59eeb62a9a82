"""What a run cost: counted per step, attributed per row, summed at the end.

FLOPs are by formula, a multiply-add being two: matrices twice their weights per token, attention
``4 × layers × heads × head_dim`` per token and key (scores and mixing). Prompt tokens are prefill;
everything after is verification (plain decoding verifies one token a pass), drafted tokens included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specbatch.account import DraftAccount
from specbatch.models.config import ModelConfig
from specbatch.rows import Row
from specbatch.verify import Verdict
from specbatch.work import Work


@dataclass(slots=True)
class EngineStats:
    """Totals of one attempt.

    Attributes:
        steps: Scheduler iterations that ran a target pass.
        row_passes: Rows summed over passes.
        kv_bytes_read: Keys and values that attention had to read.
        kv_pages_peak: Most pages held by rows at once.
        draft_pages_peak: Most pages that held drafted tokens only at once.
        plan_s: Seconds spent on admission and scheduling; likewise draft, pass, choose, commit.
        peak_resident_bytes: Largest resident memory of the process.
        drafts: Drafted tokens of all rows, those that have not ended included.
        drafter: Where drafts came from; empty when nothing was drafted.
        draft_faults: Times the drafter failed, and rows were decoded plainly.
        draft_fault: What there is to say about that; empty when nothing went wrong.
        select_s: Seconds that deferral, selection and calibration took; parts of it are in ``draft_s``.
        rested: Times a row sat a step out for others.
        policy_notice: Why the policy decoded plainly; empty when it did not.
        fallback_steps: Steps that decoded plainly although the policy is meant to do more.
        fallback: Why, most of the time.
        overload_notice: Why promises are not judged ahead; empty when they are.
        profile_drift: How far from the profile steps were in the end; empty where it describes them.
        entitled_tokens: Tier → verified tokens that its share came to while it had rows.
        achieved_tokens: Tier → verified tokens that it had meanwhile.
        attributed_s: Seconds shared among rows; those in between are nobody's.
        attributed_j: Likewise joules; ``None`` where they were not measured.
        calibration: How far predicted acceptance was from what happened, by drafter and depth.
    """

    steps: int = 0
    row_passes: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    prefill_flops: float = 0.0
    verify_flops: float = 0.0
    kv_bytes_read: int = 0
    kv_bytes_per_token: int = 0
    kv_page_size: int = 0
    kv_pages_total: int = 0
    kv_pages_peak: int = 0
    draft_pages_peak: int = 0
    plan_s: float = 0.0
    draft_s: float = 0.0
    pass_s: float = 0.0
    choose_s: float = 0.0
    commit_s: float = 0.0
    peak_resident_bytes: int = 0
    drafts: DraftAccount = field(default_factory=DraftAccount)
    drafter: str = ""
    draft_faults: int = 0
    draft_fault: str = ""
    select_s: float = 0.0
    rested: int = 0
    policy_notice: str = ""
    fallback_steps: int = 0
    fallback: str = ""
    overload_notice: str = ""
    profile_drift: str = ""
    entitled_tokens: dict[str, float] = field(default_factory=dict)
    achieved_tokens: dict[str, int] = field(default_factory=dict)
    attributed_s: float = 0.0
    attributed_j: float | None = 0.0
    calibration: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Field name → value, for the run's manifest; the account of drafts is flat among them.

        Counts by tier are flat too, ``entitled_tokens.batch``, and of the calibration what adds up over
        attempts: ``calibration.candidates``, and with ``_sum`` each mean times their number.
        """
        fields = asdict(self)
        overall = fields.pop("calibration").get("overall", {})
        fields.update(_sums(overall))
        for name in ("entitled_tokens", "achieved_tokens"):
            fields.update({f"{name}.{tier}": tokens for tier, tokens in fields.pop(name).items()})
        drafts = fields.pop("drafts")
        del drafts["accept_histogram"]
        return {**fields, **drafts}


def _sums(means: Mapping[str, float]) -> dict[str, float]:
    """Of means over candidates, what can be added up; nothing where there were none."""
    count = means.get("candidates", 0)
    sums = {f"calibration.{name}_sum": count * mean for name, mean in means.items() if name != "candidates"}
    return {"calibration.candidates": count, **sums} if count else {}


class Ledger:
    """Counts as the engine goes.

    Args:
        config: The target's shape.
        stats: Where totals are kept.
    """

    def __init__(self, config: ModelConfig, stats: EngineStats) -> None:
        self.stats = stats
        heads = config.num_heads * config.head_dim
        kv_heads = config.num_kv_heads * config.head_dim
        attention = config.hidden_size * (2 * heads + 2 * kv_heads)
        mlp = 3 * config.hidden_size * config.intermediate_size
        self._per_token = 2.0 * config.num_layers * (attention + mlp)
        self._per_key = 4.0 * config.num_layers * heads
        self._per_logits = 2.0 * config.vocab_size * config.hidden_size

    def record_pass(self, work: Sequence[Work]) -> None:
        """Account for a target pass over this work, before it is committed to the rows."""
        self.stats.steps += 1
        self.stats.row_passes += len(work)
        for item in work:
            self._record_row(item)

    def _record_row(self, item: Work) -> None:
        row, first, end = item.row, item.row.cached, item.row.cached + item.count
        split = min(max(first, len(row.prompt.token_ids)), end)
        prefill = self._flops(first, split)
        verify = self._flops(split, end)
        if item.yields_token:
            prefill += self._per_logits if split == end else 0.0
            verify += 0.0 if split == end else self._per_logits
        if item.tree is not None:
            depths = sum(item.tree.depths.tolist())
            verify += self._drafted_flops(end, item.drafted, depths)
            self._move_into_pass(row, item.drafted)
        row.target_passes += 1
        row.prefill_flops += prefill
        row.verify_flops += verify
        stats = self.stats
        stats.prefill_flops += prefill
        stats.verify_flops += verify
        stats.prefill_tokens += split - first
        stats.decode_tokens += end - split
        stats.kv_bytes_read += (end + item.drafted) * stats.kv_bytes_per_token

    def record_draft(self, row: Row, tokens: int, passes: int, flops: float) -> None:
        """Account for a draft; what of it gets into a target pass is taken out of ``unselected`` there."""
        for account in (row.drafts, self.stats.drafts):
            account.drafted += tokens
            account.unselected += tokens
            account.draft_passes += passes
            account.draft_flops += flops

    def record_verdict(self, item: Work, verdict: Verdict, trimmed: int) -> None:
        """Account for what the target chose, before the row's cached tokens and times are updated.

        Args:
            item: The row's work.
            verdict: The outcome.
            trimmed: Chosen tokens that were dropped because the text ended before them.
        """
        row, accepted = item.row, len(verdict.path)
        first = row.first_token_at is None
        rejected = item.drafted - accepted
        flops = 0.0
        if rejected and item.tree is not None:
            depths = sum(item.tree.depths.tolist()) - accepted * (accepted + 1) // 2
            flops = self._drafted_flops(row.cached + item.count, rejected, depths)
        for account in (row.drafts, self.stats.drafts):
            account.accepted += accepted
            account.rejected -= accepted
            account.rejected_flops += flops
            account.trimmed += trimmed
            if first:
                continue
            account.verifications += verdict.bonus is not None
            account.count_verification(accepted)

    def check(self) -> None:
        """Assert that the totals add up."""
        self.stats.drafts.check()

    def _move_into_pass(self, row: Row, drafted: int) -> None:
        """Drafted tokens are verified, and rejected until the verdict is there."""
        for account in (row.drafts, self.stats.drafts):
            account.unselected -= drafted
            account.selected += drafted
            account.verified += drafted
            account.rejected += drafted

    def _drafted_flops(self, context: int, tokens: int, depths: int) -> float:
        """Layers and logits of drafted tokens behind ``context`` others; ``depths`` is the sum of theirs."""
        return (self._per_token + self._per_logits) * tokens + self._per_key * (context * tokens + depths)

    def _flops(self, first: int, end: int) -> float:
        """Layers for the tokens at positions ``first`` … ``end - 1``."""
        keys = (end * (end + 1) - first * (first + 1)) // 2
        return self._per_token * (end - first) + self._per_key * keys
