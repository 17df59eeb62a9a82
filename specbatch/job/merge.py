"""``specbatch merge``: shards of a job, or several runs with the same settings, as one run directory."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbatch.config import JobConfig
from specbatch.errors import LockedError, MismatchError, UsageError
from specbatch.job.outcome import RunOutcome, judge
from specbatch.report.summary import summarise
from specbatch.signals import Interrupts
from specbatch.table.atomic import write_text
from specbatch.table.lock import holder_of
from specbatch.table.manifest import Attempt, Finished, Manifest, MergedRun
from specbatch.table.merge import count_rows, write_merged, write_merged_decisions, written_by
from specbatch.table.rundir import RunDir, differing_keys, locked, short


@dataclass(frozen=True, slots=True)
class Part:
    """A finished run whose results are to be merged."""

    directory: RunDir
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Part:
        """Check that it is a run, and complete.

        Raises:
            UsageError: It is not.
            LockedError: It is still running.
        """
        if not path.is_dir() or not (path / "run.json").is_file():
            raise UsageError(f"{path} is not a run directory", "name ones that `specbatch run` wrote")
        directory, holder = RunDir(path), holder_of(path)
        manifest = directory.load()
        assert manifest is not None, "its file is there"
        name = f"{path}{f' (shard {manifest.shard})' if manifest.shard else ''}"
        if holder is not None:
            raise LockedError(f"{name} is still running ({holder})", "wait for it, then merge")
        if manifest.finished is None:
            raise UsageError(
                f"{name} is not finished",
                "run the command that started it once more, it goes on where it stopped; then merge",
            )
        if not directory.results.is_file():
            raise UsageError(f"{name} has no results.parquet", "the command that started it writes it again")
        writer = written_by(directory.results)
        if writer != manifest.run_id:
            raise UsageError(
                f"{directory.results} belongs to another run ({writer or 'unknown'}) than {name}",
                "put back the file of this run, or delete it and run the command that started the run again",
            )
        return cls(directory, manifest)


def merge_runs(paths: Sequence[Path], out: Path) -> RunOutcome:
    """Put results together in input order, with a summary computed from all of them.

    Args:
        paths: Run directories: all shards of one job in any order, or whole runs in the order wanted.
        out: Run directory of the merged results; new, or one of an earlier merge, which is replaced.

    Returns:
        As the job would have ended in one piece, judged by the first run's tolerances.

    Raises:
        UsageError: Something is missing, twice there or not finished.
        MismatchError: The runs have different settings.
        SpecbatchError: A file cannot be read or written.
    """
    parts = [Part.open(path) for path in paths]
    _refuse_repeats(parts, out)
    for part in parts[1:]:
        _refuse_other_settings(parts[0], part)
    rows_total = _shards_total(parts)
    if rows_total is not None:
        parts.sort(key=lambda part: part.manifest.shard.number if part.manifest.shard else 0)
    with Interrupts() as interrupts, locked(out) as directory:
        _claim(directory)
        manifest = _merged(parts, out)
        directory.save(manifest)
        footer = {**manifest.stamp, b"specbatch.config": json.dumps(manifest.config).encode()}
        results = [part.directory.results for part in parts]
        write_merged(results, directory.results, footer, rows_total)
        _merge_decisions(parts, directory, footer, rows_total)
        summary = summarise(directory.results, manifest)
        with interrupts.deferred():
            write_text(directory.summary, json.dumps(summary, indent=2) + "\n")
            code, verdict = judge(summary, JobConfig.model_validate(manifest.config))
            finished = Finished(input=manifest.input, limit=_limit(parts), exit_code=code)
            directory.save(manifest.model_copy(update={"finished": finished}))
    return RunOutcome(out, code, summary, verdict, ran=True)


def _refuse_repeats(parts: list[Part], out: Path) -> None:
    seen: dict[str, Path] = {}
    for part in parts:
        path = part.directory.path
        if path.resolve() == out.resolve():
            raise UsageError(f"{out} is one of the runs to merge", "give --out a directory of its own")
        for run in (part.manifest.run_id, *(source.run_id for source in part.manifest.sources)):
            if run in seen:
                what = f"{path} and {seen[run]} are the same run, or have one in common"
                raise UsageError(what, "name each run once")
            seen[run] = path


def _refuse_other_settings(first: Part, other: Part) -> None:
    """Texts of two configurations do not get mixed."""
    one, two = first.manifest, other.manifest
    different = differing_keys(one.identity, two.identity)
    if one.numerics and two.numerics:
        different |= differing_keys(one.numerics, two.numerics)
    if different:
        listed = "; ".join(f"{key}: {short(old)} and {short(new)}" for key, (old, new) in different.items())
        raise MismatchError(
            f"{first.directory.path} and {other.directory.path} have different settings ({listed})",
            "merge runs with the same settings; run one of them again with those of the other (--fresh)",
        )


def _shards_total(parts: list[Part]) -> int | None:
    """Rows of the job whose shards these are; ``None`` when they are whole runs.

    Raises:
        UsageError: They are not the shards of one job, or not all of them.
    """
    shards = [part.manifest.shard for part in parts]
    if not any(shards):
        return None
    found: dict[int, Path] = {}
    first = next(shard for shard in shards if shard is not None)
    for part, shard in zip(parts, shards, strict=True):
        path = part.directory.path
        if shard is None:
            raise UsageError(f"{path} is a whole run, {first} is a shard", "merge shards, or whole runs")
        if (shard.count, shard.keys, shard.rows_total) != (first.count, first.keys, first.rows_total):
            raise UsageError(
                f"{path} (shard {shard} of {shard.rows_total:,} rows) and {parts[0].directory.path} "
                f"(shard {first} of {first.rows_total:,} rows) are not shards of one table",
                "all shards must read the same table with the same --limit, --where and n; "
                "run those that did not again (--fresh)",
            )
        if shard.number in found:
            raise UsageError(f"{path} and {found[shard.number]} are both shard {shard}", "name one of them")
        found[shard.number] = path
    missing = [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in found]
    if missing:
        raise UsageError(
            f"missing: shard {', '.join(missing)}",
            f"name its directory too, or run it with --shard {missing[0]}",
        )
    return first.rows_total


def _claim(directory: RunDir) -> None:
    """Only an earlier merge is replaced."""
    there = directory.load()
    if there is not None and not there.sources:
        raise MismatchError(f"{directory.path} holds a run of its own", "choose another --out")


def _merged(parts: list[Part], out: Path) -> Manifest:
    """The manifest of the merged run: the first one's settings, everybody's attempts."""
    first = parts[0].manifest
    epoch = min(part.manifest.epoch for part in parts)
    config = {**first.config, "shard": None, "out": str(out)}
    sources = tuple(
        MergedRun(
            directory=str(part.directory.path.absolute()),
            run_id=part.manifest.run_id,
            shard=str(part.manifest.shard) if part.manifest.shard else None,
        )
        for part in parts
    )
    whole = first.input if first.shard else [file for part in parts for file in part.manifest.input]
    update = {
        "run_id": uuid.uuid4().hex,
        "epoch": epoch,
        "config": config,
        "input": whole,
        "attempts": tuple(attempt for part in parts for attempt in _attempts(part, epoch)),
        "finished": None,
        "shard": None,
        "sources": sources,
    }
    return first.model_copy(update=update)


def _attempts(part: Part, epoch: float) -> list[Attempt]:
    """A run's attempts on the clock of the merged one."""
    later = part.manifest.epoch - epoch
    return [attempt.model_copy(update={"began": attempt.began + later}) for attempt in part.manifest.attempts]


def _limit(parts: list[Part]) -> int | None:
    """Of the shards; whole runs had one each, which says nothing about all of them."""
    finished = parts[0].manifest.finished
    return finished.limit if parts[0].manifest.shard and finished is not None else None


def _merge_decisions(
    parts: list[Part], directory: RunDir, footer: dict[bytes, bytes], rows_total: int | None
) -> None:
    """Those that were kept; shards know the places of their rows in the job already."""
    row = attempts = 0
    sources: list[tuple[Path, int, int]] = []
    for part in parts:
        if part.directory.decisions.is_file():
            sources.append((part.directory.decisions, row, attempts))
        attempts += len(part.manifest.attempts)
        row += 0 if rows_total is not None else count_rows(part.directory.results)
    if sources:
        write_merged_decisions(sources, directory.decisions, footer)
    else:
        directory.decisions.unlink(missing_ok=True)  # of an earlier merge
