"""What a run directory says about earlier attempts: done already, to be gone on with, or another job's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from specbatch.config import JobConfig, identity
from specbatch.config.identity import chosen
from specbatch.config.places import Shard
from specbatch.errors import MismatchError, ModelError
from specbatch.job.outcome import RunOutcome, judge
from specbatch.models.files import ModelFiles
from specbatch.progress import Reporter
from specbatch.report.failures import failures
from specbatch.report.summary import Summary, read_summary
from specbatch.table.manifest import Finished, Manifest
from specbatch.table.reader import InputTable
from specbatch.table.rundir import RunDir, differing_keys, refuse_mismatch, refuse_other_job

ROUNDED = ("q4_0", "q4_1", "q8_0")
"""Number formats of weights whose inputs the compiled kernels round unless they are told not to.

Those of :mod:`specbatch.models.packed`: taken from there, a finished run would load torch to say so.
"""


class ModelResolver(Protocol):
    """The signature of :func:`specbatch.models.resolve.resolve_model`."""

    def __call__(
        self, spec: str, *, allow_download: bool = True, report: Callable[[str], None]
    ) -> ModelFiles:
        """Find a model's files."""


def finished_before(
    directory: RunDir,
    config: JobConfig,
    table: InputTable,
    find_model: ModelResolver,
    reporter: Reporter,
) -> RunOutcome | None:
    """The outcome of a run that is complete for this very input; ``None`` when there is work to do.

    Raises:
        MismatchError: It is complete, but with other settings.
    """
    manifest = directory.load()
    if manifest is None or manifest.finished is None or not _same_input(manifest.finished, config, table):
        return None
    summary = _read_summary(directory)
    if summary is None:
        return None
    _refuse_other_shard(directory.path, manifest, config)
    try:
        files = find_model(config.model, allow_download=False, report=reporter.message)
    except ModelError:
        # A finished run needs no model: the same name is enough when the files have gone since.
        if config.model != manifest.config["model"]:
            raise
    else:
        refuse_mismatch(directory.path, manifest.identity, identity(config, files))
    refuse_other_device(directory.path, manifest, config)
    if set(config.fail_on) != set(manifest.fail_on):
        summary = {**summary, "failures": failures(directory.results, config.fail_on)}
    code, verdict = judge(summary, config)
    return RunOutcome(directory.path, code, summary, verdict, ran=False)


def claim(directory: RunDir, config: JobConfig, files: ModelFiles, table: InputTable, now: float) -> Manifest:
    """The manifest to go on with: the recorded one, or a new one where nothing is lost by it.

    Args:
        directory: Locked.
        config: The job.
        files: The model.
        table: The input.
        now: Unix seconds; the run clock's zero if the run is new.

    Raises:
        MismatchError: Rows were finished with other settings.
    """
    manifest = directory.load()
    current = identity(config, files)
    if manifest is not None:
        _refuse_others(directory, manifest, config, table, current)
        if not differing_keys(manifest.identity, current):
            settings = config.model_dump(mode="json")
            return manifest.model_copy(
                update={"config": settings, "input": table.fingerprint(), "finished": None}
            )
        directory.clear()
    model: dict[str, object] = {
        "name": files.name,
        "format": files.format,
        "quantization": config.quantize or files.quantization,
        "digest": files.digest,
    }
    return Manifest.create(config, current, model, table.fingerprint(), now)


def check_place(directory: RunDir, config: JobConfig, table: InputTable) -> None:
    """Whether a run may go on in its directory, as far as that is known without the model.

    Raises:
        MismatchError: Rows were finished with other settings.
    """
    manifest = directory.load()
    if manifest is not None:
        _refuse_others(directory, manifest, config, table, {**manifest.identity, **chosen(config)})


def _refuse_others(
    directory: RunDir,
    manifest: Manifest,
    config: JobConfig,
    table: InputTable,
    current: Mapping[str, object],
) -> None:
    """Refuse a directory with rows that another job has finished, or this one with other settings."""
    if directory.results.exists() or any(directory.parts.glob("part-*.parquet")):
        _refuse_merged(directory.path, manifest)
        refuse_other_job(directory.path, manifest.input, table.fingerprint())
        _refuse_other_shard(directory.path, manifest, config)
        refuse_mismatch(directory.path, manifest.identity, current)
        refuse_other_device(directory.path, manifest, config)


def _same_input(finished: Finished, config: JobConfig, table: InputTable) -> bool:
    # Through JSON, because that is how the recorded side came here.
    fingerprint = json.loads(json.dumps(table.fingerprint()))
    return finished.limit == config.limit and finished.input == fingerprint


def _refuse_merged(directory: Path, manifest: Manifest) -> None:
    """Merged results have no parts to go on with: every row would be run again."""
    if manifest.sources:
        raise MismatchError(
            f"{directory} holds merged results of {len(manifest.sources)} runs, which cannot be continued",
            "go on with those runs and merge them again, or choose another --out",
        )


def _refuse_other_shard(directory: Path, manifest: Manifest, config: JobConfig) -> None:
    asked = Shard.of(config.shard)
    now = "all rows" if asked is None else str(asked)
    recorded = manifest.config.get("shard") or "all rows"
    refuse_mismatch(
        directory,
        {"shard": recorded},
        {"shard": now},
        "every shard has a directory of its own (--out with {shard} in it), or --fresh to start over",
    )


def _read_summary(directory: RunDir) -> Summary | None:
    return read_summary(directory.summary) if directory.results.is_file() else None


def refuse_other_device(directory: Path, manifest: Manifest, config: JobConfig, hint: str = "") -> None:
    """Compare what can be compared before an engine is opened.

    Raises:
        MismatchError: The recorded rows were computed on another device or in another number format.
    """
    asked = {"device": config.device, "dtype": config.dtype}
    asked = {key: value for key, value in asked.items() if value != "auto" and key in manifest.numerics}
    refuse_mismatch(directory, {key: manifest.numerics[key] for key in asked}, asked, hint)
    _refuse_other_kernels(directory, manifest, config, hint)


def _refuse_other_kernels(directory: Path, manifest: Manifest, config: JobConfig, hint: str) -> None:
    """Compare with the name of the recorded kernels, such as ``compiled-avx2-int8``."""
    family, _, rest = manifest.numerics.get("kernels", "").partition("-")
    if not rest:
        return
    if config.kernels != "auto":
        refuse_mismatch(directory, {"kernels": family}, {"kernels": config.kernels}, hint)
    if family != "compiled":
        return
    now: str = config.activations
    if now == "auto":
        if manifest.identity["quantization"] not in ROUNDED:
            return
        now = "int8"
    recorded = "int8" if rest.endswith("-int8") else "float32"
    advice = f"--activations {recorded} goes on with them; or choose another --out, or --fresh to start over"
    refuse_mismatch(directory, {"activations": recorded}, {"activations": now}, hint or advice)
