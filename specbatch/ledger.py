"""What a run cost: counted per step, attributed per row, summed at the end.

FLOPs are by formula, a multiply-add being two: matrices twice their weights per token, attention
``4 × layers × heads × head_dim`` per token and key (scores and mixing). Prompt tokens are prefill;
everything after is verification (plain decoding verifies one token a pass).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specbatch.models.config import ModelConfig
from specbatch.step import Work


@dataclass(slots=True)
class EngineStats:
    """Totals of one attempt.

    Attributes:
        steps: Scheduler iterations that ran a target pass.
        row_passes: Rows summed over passes.
        kv_bytes_read: Keys and values that attention had to read.
        kv_pages_peak: Most pages held by rows at once.
        plan_s: Seconds spent on admission and scheduling; likewise pass, choose, commit.
        peak_resident_bytes: Largest resident memory of the process.
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
    plan_s: float = 0.0
    pass_s: float = 0.0
    choose_s: float = 0.0
    commit_s: float = 0.0
    peak_resident_bytes: int = 0

    def as_dict(self) -> dict[str, float | int]:
        """Field name → number, for the run's manifest."""
        return asdict(self)


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
        row.target_passes += 1
        row.prefill_flops += prefill
        row.verify_flops += verify
        stats = self.stats
        stats.prefill_flops += prefill
        stats.verify_flops += verify
        stats.prefill_tokens += split - first
        stats.decode_tokens += end - split
        stats.kv_bytes_read += end * stats.kv_bytes_per_token

    def _flops(self, first: int, end: int) -> float:
        """Layers for the tokens at positions ``first`` … ``end - 1``."""
        keys = (end * (end + 1) - first * (first + 1)) // 2
        return self._per_token * (end - first) + self._per_key * keys
