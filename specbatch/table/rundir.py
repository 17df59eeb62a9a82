"""The run directory: one run at a time, and a manifest that says whose it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from specbatch.errors import MismatchError, StorageError, UsageError
from specbatch.table.atomic import remove_leftovers, write_text
from specbatch.table.contents import MADE, REMAINS, strangers_among_parts
from specbatch.table.decisions import FILE, FOLDER
from specbatch.table.lock import LOCK, holding
from specbatch.table.manifest import Manifest

Files = Sequence[Mapping[str, object]]
"""Fingerprints of a job's files."""

_OTHER_SETTINGS = (
    "give another job over this table a directory of its own (--out, or `out` in the job file); "
    "or continue with the same settings, or --fresh to start over"
)


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of a locked run directory."""

    path: Path

    @property
    def parts(self) -> Path:
        """Folder of finished rows."""
        return self.path / "parts"

    @property
    def results(self) -> Path:
        """The complete output."""
        return self.path / "results.parquet"

    @property
    def decisions(self) -> Path:
        """What was decided about the rows, and why."""
        return self.path / FILE

    @property
    def decision_parts(self) -> Path:
        """The same while the run is going on."""
        return self.path / FOLDER

    @property
    def summary(self) -> Path:
        """Totals of the complete output."""
        return self.path / "summary.json"

    @property
    def manifest(self) -> Path:
        """``run.json``."""
        return self.path / "run.json"

    def load(self) -> Manifest | None:
        """The manifest, ``None`` in a new directory.

        Raises:
            MismatchError: It is not one of ours.
        """
        try:
            return Manifest.model_validate_json(self.manifest.read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise MismatchError(
                f"{self.manifest}: not a manifest of this version: {reason}",
                "choose another --out, or use --fresh",
            ) from None

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest.

        Raises:
            StorageError: The disk refused.
        """
        write_text(self.manifest, manifest.model_dump_json(indent=2) + "\n")

    def clear(self) -> list[Path]:
        """Forget the run. What readers look at goes first, so that no state mixes two runs.

        Returns:
            What lies among the parts and was not written by a run: it stays.

        Raises:
            StorageError: The disk refused.
        """
        try:
            for name in MADE:
                (self.path / name).unlink(missing_ok=True)
            folders = [folder for folder in (self.parts, self.decision_parts) if folder.is_dir()]
            return [left for folder in folders for left in _emptied(folder)]
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be cleared: {error.strerror}", "check permissions"
            ) from error


@contextmanager
def locked(path: Path) -> Iterator[RunDir]:
    """Create the directory if needed and hold its lock; the system frees it when the process dies.

    Raises:
        LockedError: Another process holds it.
        UsageError: The directory belongs to something else.
        StorageError: It cannot be created.
    """
    _check_ours(path)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{path}: cannot create the run directory: {error.strerror}"
        raise StorageError(what, "check space and permissions, or choose another --out") from error
    with holding(path):
        try:
            remove_leftovers(path)
            remove_leftovers(path / "parts")
            remove_leftovers(path / FOLDER)
            yield RunDir(path)
        finally:
            if is_new and not (path / "run.json").exists():
                _remove_if_unused(path)


def differing_keys(
    recorded: Mapping[str, object], current: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """Settings that differ: key → (recorded, current), in the recorded order."""
    keys = dict.fromkeys([*recorded, *current])
    # Through JSON, because that is how the recorded side came here.
    now = json.loads(json.dumps(dict(current)))
    return {key: (recorded.get(key), now.get(key)) for key in keys if recorded.get(key) != now.get(key)}


def refuse_mismatch(
    directory: Path, recorded: Mapping[str, object], current: Mapping[str, object], hint: str = ""
) -> None:
    """Check that results of two configurations do not get mixed.

    Args:
        directory: Where the recorded settings hold.
        recorded: Settings by key.
        current: Settings by key.
        hint: What to do, where it is not what one does about a run directory.

    Raises:
        MismatchError: Names every differing key with both values.
    """
    different = differing_keys(recorded, current)
    if different:
        listed = "; ".join(
            f"{key}: {short(old)} there, {short(new)} now" for key, (old, new) in different.items()
        )
        raise MismatchError(
            f"{directory} holds results of other settings ({listed})",
            hint or _OTHER_SETTINGS,
        )


def refuse_other_job(directory: Path, recorded: Files, current: Files) -> None:
    """Check that the directory is not another table's: some file must be where it was, or as it was.

    Args:
        directory: Holds results.
        recorded: Fingerprints of the files they answer.
        current: Fingerprints of the present files.

    Raises:
        MismatchError: Not a single file is the same.
    """
    places = {file["path"] for file in recorded} & {file["path"] for file in current}
    contents = {_content(file) for file in recorded} & {_content(file) for file in current}
    if recorded and current and not places and not contents:
        raise MismatchError(
            f"{directory} holds results of another job "
            f"(input {_first(recorded)} there, {_first(current)} now)",
            "choose another --out (--reuse takes over answers of unchanged rows), or --fresh to start over",
        )


def _content(file: Mapping[str, object]) -> tuple[object, ...]:
    return (file["size"], file["mtime_ns"], file["rows"])


def _first(files: Files) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]['path']}{more}"


def short(value: object) -> str:
    """A setting as JSON, cut where it would fill the screen."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:12]}...{text[-4:]}"


def _check_ours(path: Path) -> None:
    """A folder with other content and no manifest is not touched."""
    if path.is_file():
        raise UsageError(f"{path} is a file", "choose another --out")
    if path.is_dir() and not (path / "run.json").exists():
        strangers = sorted(item.name for item in path.iterdir() if item.name not in REMAINS)
        if strangers:
            raise UsageError(
                f"{path} is not a run directory and holds other files ({strangers[0]}, ...)",
                "choose another --out",
            )


def _emptied(folder: Path) -> list[Path]:
    """Remove a folder with the files that runs wrote into it; what else is in it stays, and so does it.

    Raises:
        OSError: Something cannot be removed.
    """
    left = strangers_among_parts(folder)
    for path in folder.iterdir():
        if path not in left:
            path.unlink()
    if not left and not folder.is_symlink():
        folder.rmdir()
    return left


def _remove_if_unused(path: Path) -> None:
    """A command that stopped before it began leaves no empty folder behind."""
    # Somebody may have removed it, and that is not the error to tell of.
    if path.is_dir() and [item.name for item in path.iterdir()] == [LOCK]:
        (path / LOCK).unlink()
        path.rmdir()
