"""Errors that nobody foresaw: told in one line, kept in full."""

from __future__ import annotations

import traceback
from pathlib import Path

from specbatch.errors import EngineError
from specbatch.job.surroundings import MORE_MEMORY
from specbatch.table.atomic import write_text

# What libraries say that raise ``RuntimeError`` for want of memory.
_NO_MEMORY = ("allocate memory", "out of memory", "start new thread", "start the threads")


def mishap(directory: Path, what: str, error: Exception) -> EngineError:
    """What to tell of an error; its traceback goes to ``error.txt``.

    Args:
        directory: The run's.
        what: What failed.
        error: The error.

    Raises:
        StorageError: The disk refused.
    """
    log = directory / "error.txt"
    write_text(log, "".join(traceback.format_exception(error)))
    reason = (str(error).splitlines() or [""])[0]
    hint = f"details in {log}; the same command continues"
    if isinstance(error, MemoryError) or any(words in reason for words in _NO_MEMORY):
        hint = f"lower --kv-memory, or {MORE_MEMORY}; details in {log}"
    return EngineError(f"{what}: {type(error).__name__}: {reason}", hint)
