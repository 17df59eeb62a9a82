"""Profiles in the cache: found by what they hold for, or refused with a reason. Does without torch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specbatch.errors import StorageError
from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.models.files import cache_root, write_atomically

Absence = Literal["", "missing", "stale", "foreign", "damaged"]


@dataclass(frozen=True, slots=True)
class Found:
    """A profile, or why there is none.

    Attributes:
        table: The profile.
        path: Where it is, or would be.
        absence: Kind of the reason; empty with a table.
        reason: One line for people; empty with a table.
    """

    table: CostTable | None
    path: Path
    absence: Absence = ""
    reason: str = ""


def find_profile(fingerprint: Fingerprint, directory: Path | None = None) -> Found:
    """Look for the profile of a machine and its models.

    Args:
        fingerprint: What it must hold for.
        directory: Where profiles are; default: in the cache.
    """
    directory = profile_directory() if directory is None else directory
    path = directory / f"{fingerprint.key}.json"
    try:
        table = CostTable.from_json(path.read_bytes())
    except FileNotFoundError:
        return _absent(fingerprint, directory, path)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split())
        return Found(None, path, "damaged", f"the profile {path} cannot be used: {what}")
    differences = fingerprint.differences(table.fingerprint)
    if differences:
        return Found(None, path, "foreign", f"the profile {path} is another's: {', '.join(differences)}")
    stale = fingerprint.stale(table.fingerprint)
    if stale:
        return Found(None, path, "stale", f"the profile is out of date: {stale}")
    return Found(table, path)


def save_profile(table: CostTable, directory: Path | None = None) -> Path:
    """Keep a profile, in place of an earlier one of the same machine and models.

    Raises:
        StorageError: The cache cannot be written.
    """
    directory = profile_directory() if directory is None else directory
    path = directory / f"{table.fingerprint.key}.json"
    try:
        write_atomically(path, table.to_json().decode())
    except OSError as error:
        raise StorageError(
            f"the profile cannot be kept in {directory}: {error.strerror or error}",
            "make room or set SPECBATCH_CACHE to a directory that can be written",
        ) from error
    return path


def readable_profiles(directory: Path | None = None) -> list[CostTable]:
    """All profiles in the cache, whatever they hold for.

    Args:
        directory: Where profiles are; default: in the cache.
    """
    tables = []
    for path in sorted((profile_directory() if directory is None else directory).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):  # what cannot be read is nobody's profile
            tables.append(CostTable.from_json(path.read_bytes()))
    return tables


def profile_directory() -> Path:
    """Where profiles are kept."""
    return cache_root() / "profiles"


def _absent(fingerprint: Fingerprint, directory: Path, path: Path) -> Found:
    """No file of this name; there may be a profile of the same model on another machine."""
    others = [table.fingerprint for table in readable_profiles(directory)]
    related = [other for other in others if other.model_digest == fingerprint.model_digest]
    if not related:
        return Found(None, path, "missing", "there is no profile of this model yet")
    nearest = min((fingerprint.differences(other) for other in related), key=len)
    return Found(None, path, "foreign", f"the nearest profile is another's: {', '.join(nearest)}")
