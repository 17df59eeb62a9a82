"""What commands write to stdout, and what happens when nobody reads it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from specbatch.errors import StorageError

SCHEMA_VERSION = 1
"""Of the objects that ``--json`` prints; raised when a field changes its meaning or goes."""


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """Print inside. A reader that left (``| head -1``) ends the printing, not the command.

    The exit code belongs to the command's work, so it must not depend on who reads the output.

    Raises:
        StorageError: stdout is a file, and the disk refused.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more when it ends, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            what = f"stdout cannot be written: {error.strerror or error}"
            raise StorageError(what, "the work itself is done; the same command prints it again") from error


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on one line, ``schema_version`` first."""
    with stdout_may_close():
        text = json.dumps({"schema_version": SCHEMA_VERSION, **content}, ensure_ascii=False)
        # A name of the user's may hold half a character, which no stream takes.
        sys.stdout.write(text.encode(errors="replace").decode() + "\n")
