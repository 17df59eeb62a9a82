"""Files that are there in full or not at all, whatever kills the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbatch.errors import StorageError

TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the yielded sibling; on success it is synced and renamed to ``path``.

    Raises:
        StorageError: The disk refused; ``path`` is as it was.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        # Renaming would put a file where a device (/dev/null, say) or a pipe was.
        raise StorageError(f"{path}: cannot be written: it is a device or a pipe", "name a file")
    sibling = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    try:
        try:
            yield sibling
            _sync(sibling)
            sibling.replace(path)
        except BaseException:
            sibling.unlink(missing_ok=True)
            raise
        _sync(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"{path}: cannot be written: {reason}", "check space and permissions, then run the same command"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replace a small text file.

    Raises:
        StorageError: The disk refused; ``path`` is as it was.
    """
    with replacing(path) as sibling:
        sibling.write_text(text, encoding="utf-8")


def remove_leftovers(directory: Path) -> None:
    """Delete what killed processes left half-written; call with the run directory locked."""
    for path in directory.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
