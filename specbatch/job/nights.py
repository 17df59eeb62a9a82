"""Which directory a run has: the one it is told, or with ``{date}`` in it that of the night it belongs to."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from specbatch.config import JobConfig
from specbatch.config.moments import date_of
from specbatch.config.places import DATE, Shard, filled_in
from specbatch.errors import ConfigError, LockedError, MismatchError, UsageError
from specbatch.progress import Reporter, duration
from specbatch.table.lock import holder_of, local_time
from specbatch.table.manifest import Manifest
from specbatch.table.reader import InputTable
from specbatch.table.rundir import RunDir

SAME_NIGHT_S = 12 * 3600.0
"""A start this long after the last sign of life of a run over the same input still belongs to its night."""

_TOLD_OF = 3


@dataclass(frozen=True, slots=True)
class Night:
    """A run directory with a date in its name."""

    day: date
    path: Path
    manifest: Manifest

    @property
    def last_alive(self) -> float:
        """Unix seconds."""
        ends = [attempt.end or attempt.start for attempt in self.manifest.attempts]
        return max(self.manifest.epoch + self.manifest.elapsed, *ends, 0.0)

    def has_input_of(self, table: InputTable) -> bool:
        """Whether it is about the very files that a job reads now."""
        # Through JSON, because that is how the recorded side came here.
        return bool(self.manifest.input == json.loads(json.dumps(table.fingerprint())))


def run_directory(config: JobConfig, now: float) -> Path:
    """``--out``, or the input's name with ``.out`` in the working directory.

    Args:
        config: The job.
        now: Unix seconds, for a date in the name.

    Raises:
        ConfigError: Several inputs and no ``--out``.
    """
    pattern = _pattern(config)
    return filled_in(pattern, date_of(now, config.tz), None) if DATE in str(pattern) else pattern


def place_of(
    config: JobConfig, table: InputTable, now: float, reporter: Reporter, *, fresh: bool, retry: bool
) -> Path:
    """The directory for a run that starts now.

    With ``{date}`` in ``out``, all directories that the pattern can mean are nights of one job. A start
    belongs to the newest night if that was alive during the last ``SAME_NIGHT_S`` and its input is
    unchanged, so that a run that is stopped before midnight goes on after it; else a new night begins.

    Args:
        config: The job.
        table: Its input.
        now: Unix seconds.
        reporter: Told of what was chosen, and of earlier nights that are not finished.
        fresh: Begin a new night in any case.
        retry: Go to the newest night in any case.

    Raises:
        LockedError: Another night is still running.
        UsageError: ``retry``, and the newest night was about another input.
    """
    today = run_directory(config, now)
    pattern = _pattern(config)
    if DATE not in str(pattern):
        return today
    nights = sorted(_nights(pattern), key=lambda night: night.day, reverse=True)
    _refuse_overlap(nights, today)
    newest = nights[0] if nights and not fresh else None
    if newest is not None and newest.path != today:
        same = newest.has_input_of(table)
        if retry and not same:
            raise UsageError(
                f"the input is not that of {newest.path}, so its rows are not run again",
                f"put that input back, or name the run to retry with --out {newest.path}",
            )
        if retry or (same and now - newest.last_alive < SAME_NIGHT_S):
            reporter.message(_belongs(newest, now))
            return newest.path
    _tell_of_unfinished([night for night in nights if night.path != today], config, reporter)
    return today


def _pattern(config: JobConfig) -> Path:
    """The run directory with the shard in it, and where it has one, ``{date}``."""
    shard = Shard.of(config.shard)
    if config.out is not None:
        return filled_in(config.out, None, shard)
    stem = Path(config.input[0]).stem
    if len(config.input) > 1 or any(sign in stem for sign in "*?[") or not stem:
        raise ConfigError("the run directory cannot be named after this input", "name one with --out")
    return Path(f"{stem}.out" if shard is None else f"{stem}.{shard.file_name}.out")


def _nights(pattern: Path) -> Iterator[Night]:
    """Run directories that the pattern can mean; what cannot be read is none."""
    first, *others = (re.escape(part) for part in str(pattern).split(DATE))
    expected = re.compile(rf"{first}(\d{{4}}-\d\d-\d\d)" + r"\1".join(others))
    for name in glob.glob(glob.escape(str(pattern)).replace(DATE, "*")):  # noqa: PTH207 - may be absolute
        match = expected.fullmatch(name)
        if match is None:
            continue
        try:
            day, manifest = date.fromisoformat(match[1]), RunDir(Path(name)).load()
        except (ValueError, OSError, MismatchError):
            continue
        if manifest is not None:
            yield Night(day, Path(name), manifest)


def _refuse_overlap(nights: list[Night], today: Path) -> None:
    for night in nights:
        holder = holder_of(night.path) if night.path != today else None
        if holder is not None:
            raise LockedError(
                f"the run of {night.day} is still going on in {night.path} ({holder}); "
                "another one does not start beside it",
                f"wait for it (specbatch status {night.path} tells how far it is), or end it: "
                "SIGTERM commits what is finished, and the same command goes on",
            )


def _belongs(night: Night, now: float) -> str:
    ago = f"last alive {duration(max(0.0, now - night.last_alive))} ago"
    return f"this belongs to the night of {night.day}, with the same input and {ago}: {night.path}"


def _tell_of_unfinished(nights: list[Night], config: JobConfig, reporter: Reporter) -> None:
    """Rows that nobody has answered are not to be forgotten because a new night begins."""
    late = " --late answer" if config.deadline is not None and config.late == "drop" else ""
    left = [night for night in nights if night.manifest.finished is None]
    for night in left[:_TOLD_OF]:
        attempts = night.manifest.attempts
        ended = attempts[-1].ending if attempts else "never began"
        reporter.warning(
            f"{night.path} is not finished: it {ended}, last alive {local_time(night.last_alive)}; its rows "
            f"are kept. With its input in place, the same command with --out {night.path}{late} finishes it"
        )
