"""The profile of a run: what it is about, found in the cache, or measured when there is none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from specbatch import __version__
from specbatch.config import JobConfig
from specbatch.draft.base import Drafter
from specbatch.draft.head_build import find_head
from specbatch.engine.build import Built, DraftNeeds, build_executor
from specbatch.engine.drafters import DraftPlan, make_drafter, plan_drafts
from specbatch.engine.profile_grid import SHORT
from specbatch.engine.profile_store import Found, find_profile, save_profile
from specbatch.engine.profiling import Subject, Watch, measure_costs
from specbatch.errors import EngineError, StorageError
from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import NO_DRAFTER, Fingerprint
from specbatch.hardware.processor import processor_name
from specbatch.hardware.threads import usable_cores
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles, weights_digest
from specbatch.text.tokenizer import Tokenizer

_DISTURBED_FOR = timedelta(hours=1)
"""A short profile that others' work has disturbed is put up with for so long."""


def subject_of(
    job: JobConfig,
    files: ModelFiles,
    config: ModelConfig,
    built: Built,
    plan: DraftPlan | None,
    drafter: Drafter | None,
) -> Subject:
    """What a job's profile is about.

    Args:
        job: Threads, page size, prefill chunk, draft head.
        files: The target.
        config: Its shape.
        built: Its executor.
        plan: What drafts; ``None`` for plain decoding.
        drafter: Made from that plan.
    """
    numerics = built.numerics
    fingerprint = Fingerprint(
        processor=torch.cuda.get_device_name() if numerics["device"] == "cuda" else processor_name(),
        cores=usable_cores(),
        threads=job.threads or usable_cores(),
        device=numerics["device"],
        dtype=numerics["dtype"],
        kernels=built.kernels,
        page_size=job.page_size,
        model=files.name,
        model_digest=files.digest,
        quantization=job.quantize or files.quantization,
        drafter=NO_DRAFTER if drafter is None else drafter.name,
        drafter_digest="" if plan is None else _drafter_digest(job, files, plan),
        specbatch=__version__,
    )
    needs = DraftNeeds() if plan is None else plan.needs(job.page_size)
    largest = None if plan is None else plan.shape
    return Subject(fingerprint, config, built.executor, drafter, largest, needs, job.prefill_chunk)


def open_subject(job: JobConfig, files: ModelFiles) -> Subject:
    """Load a model and what drafts for it, to be measured and nothing else.

    Raises:
        ModelError: The model cannot be run, or a draft model or head does not fit it.
        UsageError: The device is not there, or the K/V memory is too small.
    """
    config = ModelConfig.from_directory(files.directory)
    plan = plan_drafts(job, files, config, Tokenizer.load(files.directory))
    built = build_executor(job, files, config, DraftNeeds() if plan is None else plan.needs(job.page_size))
    drafter = None if plan is None else make_drafter(plan, config, built.executor)
    return subject_of(job, files, config, built, plan, drafter)


def ensure_profile(
    subject: Subject, report: Callable[[str], None], directory: Path | None = None, watch: Watch | None = None
) -> Found:
    """The profile of a run: the one in the cache, or a short one measured now and kept.

    Nothing here ends a run: without a profile it decodes plainly.

    Args:
        subject: Machine and models, at rest.
        report: Receives what is going on, a line each.
        directory: Where profiles are; default: in the cache.
        watch: Clock of the measurement.
    """
    found = find_profile(subject.fingerprint, directory)
    again = found.reason or _worth_another_try(found.table)
    if not again:
        return found
    report(f"measuring this machine for some seconds: {again}")
    try:
        table = measure_costs(subject, SHORT, watch or Watch())
    except EngineError as error:
        if found.table is not None:
            report(f"{error.what}; the profile there is does instead")
            return found
        return Found(None, found.path, found.absence, f"{found.reason}; {error.what}")
    try:
        save_profile(table, directory)
    except StorageError as error:  # costs the next run some seconds, and nothing else
        report(f"{error.what}; the next run measures again")
    return Found(table, found.path)


def _worth_another_try(table: CostTable | None) -> str:
    """Why a run should measure anew although there is a profile; empty when it should not.

    One that a run measured beside others' work is replaced by the next run, but not again and again where
    others are always at work. What somebody asked for by ``specbatch profile`` is theirs to ask for again.
    """
    if table is None or table.effort == "full" or not table.disturbed:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(table.measured_at)
    return table.disturbed if age > _DISTURBED_FOR else ""


def _drafter_digest(job: JobConfig, files: ModelFiles, plan: DraftPlan) -> str:
    """Of the weights that draft; empty when there are none."""
    if plan.model is not None:
        return plan.model[0].digest
    if plan.head is None:
        return ""
    path = find_head(files, job.draft_head)
    assert path is not None, "the plan has a head"
    return weights_digest(
        sorted((*path.glob("*.safetensors"), *path.glob("*.bin"))) if path.is_dir() else [path]
    )
