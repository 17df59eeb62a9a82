"""Errors that nobody foresaw: told in one line, kept in full."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbatch.errors import EngineError, SpecbatchError
from specbatch.job.surroundings import MORE_MEMORY
from specbatch.table.atomic import write_text

# What libraries say that raise ``RuntimeError`` for want of memory.
_NO_MEMORY = ("allocate memory", "out of memory", "start new thread", "start the threads")


@contextmanager
def mishaps(directory: Path, what: str) -> Iterator[None]:
    """Inside, an error that is none of ours becomes one; its traceback goes to ``error.txt``.

    Args:
        directory: The run's.
        what: What fails then.

    Raises:
        EngineError: Such an error.
        StorageError: The disk refused.
    """
    try:
        yield
    except SpecbatchError:
        raise
    except Exception as error:
        raise _mishap(directory, what, error) from error


def _mishap(directory: Path, what: str, error: Exception) -> EngineError:
    log = directory / "error.txt"
    write_text(log, "".join(traceback.format_exception(error)))
    reason = (str(error).splitlines() or [""])[0]
    hint = f"details in {log}; the same command continues"
    if isinstance(error, MemoryError) or any(words in reason for words in _NO_MEMORY):
        hint = f"lower --kv-memory, or {MORE_MEMORY}; details in {log}"
    return EngineError(f"{what}: {type(error).__name__}: {reason}", hint)
