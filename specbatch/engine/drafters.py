"""Which drafter a job gets, and what it takes to build it.

The target comes between plan and drafter: the plan says which layers its passes report and how much of
the K/V memory drafts take, and the drafter works with its embedding, its threads and its page numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from specbatch.cache import bytes_per_token
from specbatch.config import JobConfig
from specbatch.draft.base import Drafter, TreeShape
from specbatch.draft.combination import FirstThen
from specbatch.draft.head_build import TargetParts, build_head_drafter, find_head, scratch_pages
from specbatch.draft.head_weights import HeadConfig, HeadWeights, load_head
from specbatch.draft.model import ModelDrafter, check_pair
from specbatch.draft.suffix import SuffixDrafter
from specbatch.engine.build import DraftNeeds, build_beside
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.executor import Executor, TorchExecutor
from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.policy import make_policy
from specbatch.text.tokenizer import Tokenizer

Kind = Literal["suffix", "model", "head", "suffix+head"]
_ROWS_AT_ONCE = 16
"""Rows whose trees a draft model grows at the same time: its scratch pages are as large as the target's."""

_HEAD_SHARE = 1 / 16
"""Share of the K/V memory that a head's trees take at most where nobody asked for it: rows come first."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What will draft, before there is a target to draft for.

    Attributes:
        kind: Which drafter.
        shape: The largest tree that will be asked for.
        rows: Rows that draft at the same time.
        head: Of ``head`` and ``suffix+head``.
        model: Files and shape, of ``model``.
    """

    kind: Kind
    shape: TreeShape
    rows: int
    head: HeadWeights | None = None
    model: tuple[ModelFiles, ModelConfig] | None = None

    def needs(self, page_size: int) -> DraftNeeds:
        """What the target's executor must report, and the memory that drafts take."""
        scratch = self.rows_at_once * scratch_pages(self.shape, page_size)
        if self.head is not None:
            page_bytes = page_size * _head_bytes(self.head.config)
            own = len(self.head.config.captured) * self.head.config.hidden * 4  # of a page's last token
            return DraftNeeds(self.head.config.captured, page_bytes + own, scratch * page_bytes)
        if self.model is not None:
            shape = self.model[1]
            page_bytes = page_size * bytes_per_token(
                (shape.num_layers, shape.num_kv_heads, shape.head_dim), torch.float32
            )
            return DraftNeeds((), page_bytes, scratch * page_bytes)
        return DraftNeeds()

    @property
    def rows_at_once(self) -> int:
        """Rows whose trees grow at the same time."""
        return self.rows if self.model is None else min(self.rows, _ROWS_AT_ONCE)


def plan_drafts(
    job: JobConfig, files: ModelFiles, config: ModelConfig, tokenizer: Tokenizer
) -> DraftPlan | None:
    """Decide what drafts for a target, and load what there is to load.

    Args:
        job: Policy and drafter.
        files: The target.
        config: Its shape.
        tokenizer: Its tokenizer.

    Returns:
        ``None`` for plain decoding.

    Raises:
        ModelError: A draft model or head is missing, damaged, or made for another target.
    """
    shape = make_policy(job).largest
    if shape is None:
        return None
    rows = job.max_rows_in_flight
    if job.drafter == "suffix":
        return DraftPlan("suffix", shape, rows)
    if job.drafter == "model":
        return DraftPlan("model", shape, rows, model=_draft_model(job, files, tokenizer))
    path = find_head(files, job.draft_head)
    if path is None and job.drafter == "auto":
        return DraftPlan("suffix", shape, rows)
    if path is None:
        raise ModelError(
            f"there is no draft head for {files.name}",
            "name one with --draft-head, train one with `specbatch train-draft`, or use --drafter suffix",
        )
    kind: Kind = "head" if job.drafter == "head" else "suffix+head"
    plan = DraftPlan(kind, shape, rows, head=load_head(path, config))
    if job.drafter == "auto" and job.draft_head is None and _too_large(plan, job):
        return DraftPlan("suffix", shape, rows)
    return plan


def _too_large(plan: DraftPlan, job: JobConfig) -> bool:
    """Whether drafts would take room that rows need, where keys and values have little of it."""
    fixed = plan.needs(job.page_size).fixed_bytes
    return job.kv_memory != "auto" and fixed > _HEAD_SHARE * job.kv_memory


def make_drafter(plan: DraftPlan, config: ModelConfig, executor: Executor) -> Drafter:
    """Build what was planned.

    Args:
        plan: Of the same job.
        config: Shape of the target.
        executor: The target, built with ``plan.needs``.
    """
    if plan.model is not None:
        files, shape = plan.model
        scratch = plan.rows_at_once * scratch_pages(plan.shape, executor.store.page_size)
        return ModelDrafter(build_beside(executor, files, shape, scratch), shape, config.vocab_size, scratch)
    if plan.head is None:
        return SuffixDrafter()
    head = build_head_drafter(plan.head, _target_parts(config, executor), plan.rows_at_once, plan.shape)
    return head if plan.kind == "head" else FirstThen(SuffixDrafter(), head)


def _draft_model(job: JobConfig, files: ModelFiles, tokenizer: Tokenizer) -> tuple[ModelFiles, ModelConfig]:
    """The draft model's files and shape.

    Raises:
        ModelError: It is not there, or its tokens are not the target's.
    """
    assert job.draft_model is not None, "the settings were checked"
    draft = resolve_model(job.draft_model, allow_download=False, report=lambda _: None)
    config = ModelConfig.from_directory(draft.directory)
    check_pair((files.name, tokenizer), (draft.name, Tokenizer.load(draft.directory)), config)
    return draft, config


def _target_parts(config: ModelConfig, executor: Executor) -> TargetParts:
    store = executor.store
    if isinstance(executor, CompiledExecutor):
        embedding = executor.decoder.parts.embedding
        return TargetParts(config, embedding, executor.pool, store.num_pages, store.page_size)
    assert isinstance(executor, TorchExecutor), "not one of ours"
    return TargetParts(config, executor.decoder.embedding.float(), None, store.num_pages, store.page_size)


def _head_bytes(config: HeadConfig) -> int:
    """Keys and values of one entry."""
    return bytes_per_token((1, config.kv_heads, config.head_dim), torch.float32)
