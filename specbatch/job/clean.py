"""Old runs: which may go, and their removal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from specbatch.errors import LockedError, MismatchError, StorageError, UsageError
from specbatch.table.contents import strangers
from specbatch.table.lock import holder_of, holding
from specbatch.table.manifest import Manifest
from specbatch.table.rundir import RunDir

_DOOMED = ".{}.removed"
"""Name of a run directory from the moment it is given up: a killed ``clean`` leaves no half of a run."""


@dataclass(frozen=True, slots=True)
class OldRun:
    """A directory that was looked at.

    Attributes:
        path: Of the run.
        started: First start, Unix seconds; ``None`` when it is no run.
        size: Bytes of its files.
        kept: Why it stays; empty when it goes.
    """

    path: Path
    started: float | None
    size: int
    kept: str


def old_runs(folder: Path, keep: int, *, unfinished: bool) -> list[OldRun]:
    """Say for each run directory in a folder whether it goes, the oldest first.

    The newest ``keep`` finished runs stay, and so does whatever is newer than the oldest of them.

    Args:
        folder: Holds run directories.
        keep: How many finished runs.
        unfinished: Older runs that are not finished may go as well.

    Raises:
        UsageError: There is no such folder, or it is a run directory itself.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory", "name the folder that holds the run directories")
    if (folder / "run.json").exists():
        what = f"{folder} is a run directory itself"
        raise UsageError(what, f"name the folder that holds the run directories: {folder.parent}")
    found = [_look(path) for path in sorted(folder.iterdir()) if path.is_dir() and not _is_doomed(path)]
    runs = sorted((run for run in found if run.manifest is not None), key=lambda run: run.started)
    finished = [run.started for run in runs if run.is_finished]
    oldest_kept = finished[-keep] if 0 < keep <= len(finished) else float("inf" if keep == 0 else "-inf")
    judged = [_judge(run, oldest_kept, keep, unfinished=unfinished) for run in runs]
    return [*judged, *(run.staying(run.problem) for run in found if run.manifest is None)]


def leftovers(folder: Path) -> list[OldRun]:
    """What an earlier removal that was killed left of its runs; with the files of others in it, it stays."""
    doomed = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_doomed(path)]
    strangers = [_stranger(path) for path in doomed]
    return [
        OldRun(path, None, _size(path), "" if stranger is None else _of_others(path, stranger))
        for path, stranger in zip(doomed, strangers, strict=True)
    ]


def remove(runs: Sequence[OldRun]) -> Iterator[OldRun]:
    """Remove the runs that go, one after the other; yields each as it ended.

    Raises:
        StorageError: One cannot be removed.
    """
    for run in runs:
        if run.kept:
            continue
        try:
            yield _remove(run)
        except OSError as error:
            what = f"{run.path}: cannot be removed: {error.strerror}"
            raise StorageError(what, "check the permissions of it and of its folder") from error


def _remove(run: OldRun) -> OldRun:
    doomed = run.path
    if not _is_doomed(doomed):
        doomed = run.path.with_name(_DOOMED.format(run.path.name))
        try:
            with holding(run.path):
                run.path.rename(doomed)
        except LockedError:
            return OldRun(run.path, run.started, run.size, "in use since a moment ago")
    shutil.rmtree(doomed)
    return run


@dataclass(frozen=True, slots=True)
class _Seen:
    path: Path
    manifest: Manifest | None
    problem: str

    @property
    def started(self) -> float:
        return 0.0 if self.manifest is None else self.manifest.epoch

    @property
    def is_finished(self) -> bool:
        return self.manifest is not None and self.manifest.finished is not None

    def staying(self, reason: str) -> OldRun:
        started = None if self.manifest is None else self.manifest.epoch
        return OldRun(self.path, started, _size(self.path) if self.manifest is not None else 0, reason)


def _look(path: Path) -> _Seen:
    if path.is_symlink():
        return _Seen(path, None, "a link; remove it by hand")
    try:
        manifest = RunDir(path).load()
    except (MismatchError, OSError):
        return _Seen(path, None, "its run.json cannot be read")
    return _Seen(path, manifest, "" if manifest is not None else "no run directory")


def _judge(run: _Seen, oldest_kept: float, keep: int, *, unfinished: bool) -> OldRun:
    holder = holder_of(run.path)
    if holder is not None:
        return run.staying(f"running, {holder}")
    if run.started >= oldest_kept:
        return run.staying(f"one of the newest {keep}" if run.is_finished else "newer than a run that stays")
    spared = not run.is_finished and not unfinished
    stranger = _stranger(run.path)
    if stranger is not None:
        return run.staying(f"{'not finished, and ' if spared else ''}{_of_others(run.path, stranger)}")
    return run.staying("not finished; --unfinished removes it, too" if spared else "")


def _of_others(run: Path, stranger: Path) -> str:
    """Why a directory stays, and what helps."""
    advice = f"move it away, or remove the whole directory yourself: rm -r {quote(str(run))}"
    return f"holds {stranger}, which no run wrote; {advice}"


def _stranger(run: Path) -> Path | None:
    """The first thing in a run directory that no run wrote, as seen from there."""
    stranger = next(strangers(run), None)
    return None if stranger is None else stranger.relative_to(run)


def _is_doomed(path: Path) -> bool:
    before, after = _DOOMED.split("{}")
    return path.name.startswith(before) and path.name.endswith(after) and not path.is_symlink()


def _size(path: Path) -> int:
    return sum(item.lstat().st_size for item in path.rglob("*") if not item.is_dir())
