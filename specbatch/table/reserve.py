"""Room on the disk that is kept until the last words of a run have to be written."""

from __future__ import annotations

import os
from pathlib import Path

from specbatch.errors import StorageError
from specbatch.table.atomic import TEMPORARY_SUFFIX, replacing

RESERVE = f".reserve{TEMPORARY_SUFFIX}"
"""Name of the file that keeps the room."""

_SLACK_BYTES = 16_384


class Reserve:
    """A file whose blocks are given back when a small text has to be written to a full disk.

    Another process may take them first, so whoever writes then must still count with a failure.

    Args:
        directory: Of the file; what a killed process left of it,
            :func:`specbatch.table.atomic.remove_leftovers` deletes.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE

    def fill(self, text_bytes: int) -> None:
        """Take the room.

        Args:
            text_bytes: Size of the text at present; there will be room for twice as much and some more.

        Raises:
            StorageError: There is no room.
        """
        with replacing(self._path) as sibling:
            # File systems that compress would store zeros in no room at all.
            sibling.write_bytes(os.urandom(2 * text_bytes + _SLACK_BYTES))

    def release(self) -> None:
        """Give the room back; nothing where it was given back before.

        Raises:
            StorageError: The file cannot be removed.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            what = f"{self._path}: cannot be removed: {error.strerror}"
            raise StorageError(what, "check the permissions of its folder") from error
