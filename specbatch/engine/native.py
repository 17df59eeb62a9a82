"""The native engine: loading a model once, then answering feeds with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specbatch.config import JobConfig
from specbatch.engine.build import Built, DraftNeeds, build_executor, drafts_in_memory
from specbatch.engine.drafters import make_drafter, plan_drafts
from specbatch.engine.feed import Feed, Host
from specbatch.engine.loop import Loop, Target
from specbatch.engine.profiles import ensure_profile, subject_of
from specbatch.ledger import EngineStats
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.packed import PackedWeights
from specbatch.policy import counts_with_costs
from specbatch.policy.costed import N_MAX
from specbatch.text.encoder import PromptEncoder


class NativeEngine:
    """A decoder on one device behind the scheduler of :mod:`specbatch.engine.loop`.

    Args:
        target: The loaded model.
        encoder: Chat template and tokenizer.
        job: The job's settings.
        built: What the target's executor is made of.
    """

    def __init__(self, target: Target, encoder: PromptEncoder, job: JobConfig, built: Built) -> None:
        self.target = target
        self._job = job
        self.encoder = encoder
        self._built = built

    @property
    def numerics(self) -> Mapping[str, str]:
        """Device class, number format and kernels: what can change a row's last bits."""
        return self._built.numerics

    @property
    def notice(self) -> str:
        """Why it is slower than it could be; empty when it is not."""
        return self._built.notice

    @property
    def config(self) -> ModelConfig:
        """Shape of the target model."""
        return self.target.config

    def run(self, feed: Feed, host: Host) -> EngineStats:
        """Answer every row of the feed, or stop early when the host asks for it."""
        return Loop(self.target, self._job, feed, host).run()


def open_engine(
    job: JobConfig,
    files: ModelFiles,
    encoder: PromptEncoder,
    report: Callable[[str], None] = lambda _: None,
    weights: PackedWeights | None = None,
) -> NativeEngine:
    """Load a model around what prepares its prompts.

    Args:
        job: The job.
        files: The model.
        encoder: Its chat template and tokenizer.
        report: Receives a line where loading takes longer than usual.
        weights: The model's weights where they are being packed already; otherwise they are read now.

    Raises:
        ModelError: The model cannot be run by this engine, or a draft model or head does not fit it.
        UsageError: The device is not there, or the K/V memory is too small.
    """
    config = ModelConfig.from_directory(files.directory)
    plan = plan_drafts(job, files, config, encoder.tokenizer)
    needs = DraftNeeds() if plan is None else plan.needs(job.page_size)
    built = build_executor(job, files, config, needs, weights)
    drafter = None if plan is None else make_drafter(plan, config, built.executor)
    target = Target(config, encoder.tokenizer, built.executor, drafter)
    if drafter is not None:
        target = replace(target, max_drafted=drafts_in_memory(job, config), draft_nodes=N_MAX)
    if counts_with_costs(job.policy):
        found = ensure_profile(subject_of(job, files, config, built, plan, drafter), report)
        target = replace(target, profile=found.table, no_profile=found.reason)
        built = replace(built, notice=built.notice or found.reason)
    return NativeEngine(target, encoder, job, built)
