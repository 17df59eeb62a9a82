"""A log file that may be rotated while it is written to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, TextIO

from specbatch.errors import UsageError


class LineStream(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> int:
        """Take some text."""
        ...

    def flush(self) -> None:
        """Hand what was written on."""
        ...


class LogFile:
    """Appends lines to a path, not to a file: whoever renames the file starts a new one.

    Before each line it is seen whether the path still names the open file; where it does not, the path
    is opened again. So ``logrotate`` needs neither ``copytruncate`` nor a signal, and with
    ``copytruncate`` it works as well, since every line goes to the end.

    Args:
        path: Of the log; its folder must exist.

    Raises:
        UsageError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: TextIO | None = self._open()
        except OSError as error:
            raise UsageError(
                f"log file {path}: {error.strerror}", "check the folder and its permissions"
            ) from error

    def write(self, text: str, /) -> int:
        """Append.

        Raises:
            OSError: The disk refuses; the next call tries again.
        """
        if self._file is not None and not self._is_current(self._file):
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._open()
        return self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        return self._path.open("a", encoding="utf-8", errors="replace")

    def _is_current(self, file: TextIO) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(file.fileno())
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
