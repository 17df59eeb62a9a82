"""How far a run has come, read from its directory while it runs or after it died.

Nothing is written and nothing waited for. Every file is read for itself, so that a damaged directory
still tells what it can.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specbatch.errors import MismatchError, UsageError
from specbatch.table.lock import LOCK, Holder, holder_of
from specbatch.table.manifest import Attempt, Manifest
from specbatch.table.rundir import RunDir


class State(StrEnum):
    """What a run is doing."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One look at a run directory; ``None`` where it does not say. Times are Unix seconds.

    Attributes:
        state: ``stopped`` ended by itself or by a signal, ``killed`` without a word.
        process: Id of the process that holds the lock.
        rows_done: Rows that are safe on disk, earlier attempts included.
        attempts: Starts so far.
        exit_code: Of the last attempt.
        started: First start.
        last_commit: When rows were last made safe.
        rows_per_s: Rows that got a text, per second of the latest attempt's engine time.
        eta_s: Seconds to go at that rate; only while running.
        problems: What is missing or damaged, one line each.
    """

    directory: str
    state: State
    process: int | None
    run_id: str | None
    rows_total: int | None
    rows_done: int
    attempts: int
    exit_code: int | None
    started: float | None
    last_commit: float | None
    rows_per_s: float | None
    eta_s: float | None
    problems: tuple[str, ...]


def read_status(path: Path) -> RunStatus:
    """Look at a run directory.

    Raises:
        UsageError: There is no such directory, or no run has ever been in it.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: no such directory", "name a run directory, e.g. jobs.out")
    directory = RunDir(path)
    traces = (directory.manifest, path / LOCK, directory.results, *directory.parts.glob("part-*"))
    if not any(trace.exists() for trace in traces):
        raise UsageError(f"{path} is not a run directory", _run_directories(path))
    problems: list[str] = []
    holder = _holder(path, problems)
    manifest = _manifest(directory, problems)
    parts, rows, last_commit = _parts(directory, manifest, problems)
    last = manifest.attempts[-1] if manifest is not None and manifest.attempts else None
    state = _state(manifest, last, is_alive=holder is not None)
    if (path / "error.txt").is_file():
        problems.append("error.txt: an attempt failed; the details are in this file")
    total = None if manifest is None else _total(manifest)
    done = rows
    if state is State.FINISHED:
        finished = _results_rows(directory, problems)
        total, done = (total, done) if finished is None else (finished, finished)
    if total is not None and done > total:
        problems.append(f"parts hold {done} rows, the input has {total}: rows left the input since")
        done = total
    if parts == 0 and state is State.RUNNING and not problems:
        problems.append("no rows are committed yet")
    rate = _rate(last)
    to_go = state is State.RUNNING and rate and total is not None
    return RunStatus(
        directory=str(path),
        state=state,
        process=None if holder is None else holder.process,
        run_id=None if manifest is None else manifest.run_id,
        rows_total=total,
        rows_done=done,
        attempts=0 if manifest is None else len(manifest.attempts),
        exit_code=_exit_code(manifest, last),
        started=None if manifest is None else manifest.epoch,
        last_commit=last_commit,
        rows_per_s=rate,
        eta_s=(total - done) / rate if to_go and rate and total is not None else None,
        problems=tuple(problems),
    )


def _rate(attempt: Attempt | None) -> float | None:
    """Rows per second; those that ended without a text took no time, and say nothing of those to come."""
    if attempt is None or not attempt.answered_rows or not attempt.engine_seconds:
        return None
    return attempt.answered_rows / attempt.engine_seconds


def _run_directories(path: Path) -> str:
    """Which run directories somebody may have meant."""
    near = sorted(str(found.parent) for found in path.glob("*/run.json"))
    named = f"there is {', '.join(near[:3])}" if near else "name one, e.g. jobs.out"
    return f"{named}: what --out says, or the input's name with .out"


def _holder(path: Path, problems: list[str]) -> Holder | None:
    """Who holds the lock, if anybody does."""
    try:
        return holder_of(path)
    except OSError as error:
        problems.append(f"{LOCK}: cannot be read: {error.strerror}; whether the run is alive is unknown")
    return None


def _manifest(directory: RunDir, problems: list[str]) -> Manifest | None:
    try:
        manifest = directory.load()
    except MismatchError as error:
        problems.append(f"run.json: {error.what.partition(': ')[2]}")
        return None
    except OSError as error:
        problems.append(f"run.json: cannot be read: {error.strerror}")
        return None
    if manifest is None:
        problems.append("run.json: missing; this is no run directory, or its run has not begun")
    return manifest


def _parts(
    directory: RunDir, manifest: Manifest | None, problems: list[str]
) -> tuple[int, int, float | None]:
    """Parts of this run: their number, their rows, and when the newest was written."""
    stamp = {} if manifest is None else manifest.stamp
    number, rows, newest = 0, 0, None
    for path in sorted(directory.parts.glob("*")):
        if path.name.startswith("."):
            continue  # being written
        try:
            metadata = pq.read_metadata(path)
            written = path.stat().st_mtime
        except (OSError, pa.ArrowException):
            problems.append(f"parts/{path.name}: damaged or incomplete; its rows run again")
            continue
        footer = metadata.metadata or {}
        if any(footer.get(name) != value for name, value in stamp.items()):
            problems.append(f"parts/{path.name}: belongs to another run")
            continue
        number, rows = number + 1, rows + int(metadata.num_rows)
        newest = written if newest is None else max(newest, written)
    return number, rows, newest


def _exit_code(manifest: Manifest | None, last: Attempt | None) -> int | None:
    """Of the last attempt; merged results have one of their own."""
    if manifest is not None and manifest.sources:
        return None if manifest.finished is None else manifest.finished.exit_code
    return None if last is None else last.exit_code


def _state(manifest: Manifest | None, last: Attempt | None, *, is_alive: bool) -> State:
    if is_alive:
        return State.RUNNING
    if manifest is None or last is None:
        return State.UNKNOWN
    if manifest.finished is not None:
        return State.FINISHED
    return State.KILLED if last.exit_code is None else State.STOPPED


def _results_rows(directory: RunDir, problems: list[str]) -> int | None:
    """Rows of the complete output of a finished run."""
    if not directory.summary.is_file():
        problems.append("summary.json: missing; run the same command to write it again")
    try:
        return int(pq.read_metadata(directory.results).num_rows)
    except FileNotFoundError:
        problems.append("results.parquet: missing; run the same command to write it again")
    except (OSError, pa.ArrowException):
        problems.append("results.parquet: damaged; delete it and run the same command")
    return None


def _total(manifest: Manifest) -> int | None:
    """Rows of the job; only reading the input tells how many of them a condition keeps."""
    if any("where" in entry for entry in manifest.input):
        return None
    if manifest.shard is not None:
        return manifest.shard.rows
    rows = [entry.get("rows") for entry in manifest.input]
    return sum(number for number in rows if isinstance(number, int))


def age(moment: float, now: float | None = None) -> float:
    """Seconds since a moment, not negative where clocks differ."""
    return max(0.0, (time.time() if now is None else now) - moment)
