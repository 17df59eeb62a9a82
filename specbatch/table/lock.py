"""The lock of a run directory: one run at a time, and who holds it since when.

It is a lock of the system (``flock``) on a file, so it ends with the process, however that ends. What
the file says is for people, and of a process that may be long dead.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specbatch.errors import LockedError, StorageError

LOCK = ".lock"
_PROBE_SECONDS = 0.1
_MOST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Holder:
    """Who works in a run directory; ``None`` where the file does not say.

    Attributes:
        process: Its number.
        since: When it took the lock, Unix seconds.
        host: Name of its machine: directories are shared at times.
    """

    process: int | None = None
    since: float | None = None
    host: str | None = None

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Read ``process since host``; what does not parse is unknown."""
        fields = [*text.split(), "", "", ""]
        process = int(fields[0]) if fields[0].isdigit() else None
        since = int(fields[1]) if fields[1].isdigit() else None
        return cls(process, since, fields[2] or None)

    def __str__(self) -> str:
        """``process 4711 on build7 since 2026-11-30 02:05:00 CET``."""
        text = f"process {self.process or 'unknown'}"
        if self.host is not None:
            text += f" on {self.host}"
        return text if self.since is None else f"{text} since {local_time(self.since)}"


def local_time(seconds: float) -> str:
    """Unix seconds as ``2026-11-30 02:05:00 CET``, in the machine's zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the lock of a directory that exists.

    Raises:
        LockedError: Another process holds it.
        StorageError: The file cannot be created.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        what = f"{path}: cannot lock the run directory: {error.strerror}"
        raise StorageError(what, "check space and permissions, or choose another --out") from error
    try:
        _lock(handle, path)
        yield
    finally:
        os.close(handle)


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock of a directory; ``None`` when nobody does.

    The lock is tried, shared and for a moment only.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(handle)
    finally:
        os.close(handle)
    return None


def _read(handle: int) -> Holder:
    return Holder.parse(os.pread(handle, _MOST_BYTES, 0).decode(errors="replace"))


def _lock(handle: int, path: Path) -> None:
    try:
        _try_lock(handle)
    except BlockingIOError:
        raise LockedError(
            f"{path} is in use by another run ({_read(handle)})",
            f"wait for it (specbatch status {path} tells how far it is), or choose another --out",
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} {int(time.time())} {socket.gethostname()}\n".encode(), 0)


def _try_lock(handle: int) -> None:
    """Twice: whoever asks whether a run is alive tries the lock, too, for some microseconds."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_PROBE_SECONDS)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
