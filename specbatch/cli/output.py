"""What commands write to stdout, and what happens when nobody reads it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SCHEMA_VERSION = 1
"""Of the objects that ``--json`` prints; raised when a field changes its meaning or goes."""


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """Print inside. A reader that left (``| head -1``) ends the printing, not the command.

    The exit code belongs to the command's work, so it must not depend on who reads the output.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on one line, ``schema_version`` first."""
    with stdout_may_close():
        text = json.dumps({"schema_version": SCHEMA_VERSION, **content}, ensure_ascii=False)
        # A name of the user's may hold half a character, which no stream takes.
        sys.stdout.write(text.encode(errors="replace").decode() + "\n")
