"""One loaded target, and for every run a drafter that has seen nothing yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from specbatch.bench.once import Clock, WallClock
from specbatch.config import JobConfig
from specbatch.draft.base import Drafter
from specbatch.draft.combination import FirstThen
from specbatch.draft.suffix import SuffixDrafter
from specbatch.energy.find import open_meter
from specbatch.energy.meter import EnergyMeter, NoMeter
from specbatch.engine.build import DraftNeeds, build_executor, drafts_in_memory
from specbatch.engine.drafters import DraftPlan, make_drafter, plan_drafts
from specbatch.engine.encoder import open_encoder
from specbatch.engine.executor import Executor
from specbatch.engine.loop import Target
from specbatch.engine.profiles import ensure_profile, subject_of
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.policy import counts_with_costs, make_policy
from specbatch.policy.costed import N_MAX
from specbatch.text.encoder import PromptEncoder

_UNASKED = NoMeter("no meter was asked for")


@dataclass(frozen=True, slots=True)
class Rig:
    """What all policies share.

    Attributes:
        target: The model, with the profile and the memory for drafts, and without a drafter.
        encoder: Turns raw prompts into tokens of this model.
        computes: Device, number format and kernels, instruction set included.
        notice: Why it is slower than it could be; empty when it is not.
        head: The part of the drafter that keeps nothing from run to run.
        suffix: Whether a suffix drafter goes before it, or drafts alone.
        clock: Where the time of runs comes from.
        meter: Where joules come from, or why there are none.
    """

    target: Target
    encoder: PromptEncoder
    computes: Mapping[str, str]
    notice: str
    head: Drafter | None = None
    suffix: bool = False
    clock: Clock = field(default_factory=WallClock)
    meter: EnergyMeter | NoMeter = _UNASKED

    def fresh(self, job: JobConfig) -> Target:
        """The target as a run of a job finds it: with what its policy asks for and nothing else.

        A suffix drafter remembers what earlier rows wrote. Left in place, it would know the answers of
        every run but the first, so each run gets a new one.
        """
        target = self.target
        if not counts_with_costs(job.policy):
            target = replace(target, profile=None, no_profile="")
        if make_policy(job).largest is None:
            return replace(target, draft_nodes=0)
        return replace(target, drafter=self.new_drafter())

    def new_drafter(self) -> Drafter | None:
        """A drafter that has seen nothing yet; ``None`` when nothing drafts."""
        if not self.suffix:
            return self.head
        return SuffixDrafter() if self.head is None else FirstThen(SuffixDrafter(), self.head)


def open_rig(job: JobConfig, policies: Sequence[str], files: ModelFiles) -> Rig:
    """Load a model, whatever drafts for it, and the profile that policies count with.

    Args:
        job: Settings of all runs.
        policies: All that will run; the drafter is built for the largest trees among theirs.
        files: The model.

    Raises:
        ModelError: The model cannot be run, or a draft model or head does not fit it.
        UsageError: The device is not there, or the K/V memory is too small.
    """
    config = ModelConfig.from_directory(files.directory)
    encoder = open_encoder(job, files.directory, datetime.now().astimezone())
    largest = job_of_largest_trees(job, policies)
    plan = plan_drafts(largest, files, config, encoder.tokenizer)
    needs = DraftNeeds() if plan is None else plan.needs(job.page_size)
    built = build_executor(largest, files, config, needs)
    head = None if plan is None else _head(plan, config, built.executor)
    suffix = plan is not None and "suffix" in plan.kind
    room = drafts_in_memory(largest, config)
    target = Target(config, encoder.tokenizer, built.executor, max_drafted=room, draft_nodes=N_MAX)
    meter = open_meter(built.numerics["device"], job.assume_watts)
    computes = {**built.numerics, "kernels": built.kernels}
    rig = Rig(target, encoder, computes, built.notice, head, suffix, meter=meter)
    if not any(map(counts_with_costs, policies)):
        return rig
    subject = subject_of(largest, files, config, built, plan, rig.new_drafter())
    found = ensure_profile(subject, lambda _: None)
    return replace(rig, target=replace(target, profile=found.table, no_profile=found.reason))


def job_of_largest_trees(job: JobConfig, policies: Sequence[str]) -> JobConfig:
    """A job whose drafter can draft for every one of these policies."""
    shapes = [make_policy(job.model_copy(update={"policy": policy})).largest for policy in policies]
    bounds = [shape for shape in shapes if shape is not None]
    if not bounds:
        return job.model_copy(update={"policy": "off"})
    return job.model_copy(
        update={
            "policy": "eagle",
            "tree_levels": max(shape.levels for shape in bounds),
            "tree_width": max(shape.width for shape in bounds),
            "tree_nodes": max(shape.nodes for shape in bounds),
        }
    )


def _head(plan: DraftPlan, config: ModelConfig, executor: Executor) -> Drafter | None:
    """What drafts, a suffix drafter aside."""
    if plan.kind == "suffix":
        return None
    kind = "head" if plan.kind == "suffix+head" else plan.kind
    return make_drafter(replace(plan, kind=kind), config, executor)
