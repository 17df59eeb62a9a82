"""Entry point of the ``specbatch`` command: signals first, then everything else."""

from __future__ import annotations

import os
import sys

from specbatch.errors import EngineError, SpecbatchError, UsageError
from specbatch.hardware.threads import prepare_environment
from specbatch.signals import Interrupts
from specbatch.startup import loading


def main() -> None:
    """Run the command line; errors become one line each and a documented exit code."""
    _open_standard_streams()
    prepare_environment(os.environ)
    try:
        with Interrupts(last=True):
            # After the handlers are in place: importing the commands takes a good part of a second.
            with loading():
                from specbatch.cli.app import app  # noqa: PLC0415

            app()
    except SpecbatchError as error:
        sys.exit(_tell(error))
    except (ImportError, MemoryError) as error:
        # Where memory is short, the libraries are the first not to get any.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        hint = (
            "raise the memory limit (ulimit -v, the container's); if it is not that, install specbatch again"
        )
        sys.exit(_tell(EngineError(f"out of memory, or the installation is damaged: {reason}", hint)))
    except OSError as error:
        # A path nobody may look at, or longer than the system takes; failing disks have errors of their own.
        if error.filename is None:
            raise
        sys.exit(
            _tell(UsageError(f"{error.filename}: {error.strerror}", "check the path and its permissions"))
        )


def _open_standard_streams() -> None:
    """Make closed streams (``2>&-``) ones that nobody reads.

    Python has ``None`` in their place, and the next file opened would get the number and with it
    whatever a library prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))


def _tell(error: SpecbatchError) -> int:
    """Write an error for people; returns the exit code."""
    lines = [f"error: {' '.join(error.what.split())}"]
    if error.hint:
        lines.append(f"  hint: {' '.join(error.hint.split())}")
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except OSError:
        # Nobody reads stderr any more; the exit code still says what happened.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return int(error.exit_code)
