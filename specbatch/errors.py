"""Everything that can go wrong, as one tree, with the process exit code of each branch.

    SpecbatchError
    ├── UsageError            2    flags or arguments that make no sense
    │   ├── ConfigError       2    job file, environment or settings: unknown key, bad value
    │   ├── InputError        2    input table: unreadable, missing column, wrong type
    │   ├── ModelError        2    model: not found, wrong digest, unsupported architecture
    │   └── MismatchError     2    run directory belongs to another configuration
    ├── EngineError           4    the engine or the disk failed; what was finished is kept
    │   └── StorageError      4    a write failed (disk full, permission, vanished directory)
    ├── TooManyFailures       1    so many rows failed that the rest was not run
    ├── LockedError          75    another run holds the run directory
    └── Interrupted     130/143    SIGINT / SIGTERM; finished rows are committed

    RowFault                  -    one row is at fault: it becomes a row of the output, never an exit
    MeterFault                -    energy cannot be read: it becomes null with a reason, never an exit

Messages say what happened, where (file, row, column) and what to do about it, in one line each.
Every part is shown to the user as ``error: <what>`` followed by ``  hint: <what to do>``.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of ``specbatch`` (design: stable, documented in the README)."""

    OK = 0
    ROW_FAILURES = 1
    USAGE = 2
    ATTAINMENT = 3
    ENGINE = 4
    LOCKED = 75
    SIGINT = 130
    SIGTERM = 143


class SpecbatchError(Exception):
    """Base of all errors that end a command.

    Args:
        what: What happened and where, one line, no trailing full stop needed.
        hint: What the user can do about it, one line; empty when nothing helps.
    """

    exit_code: ExitCode = ExitCode.ENGINE

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class UsageError(SpecbatchError):
    """The command cannot be carried out as given; nothing was run."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A setting is unknown, malformed or contradicts another."""


class InputError(UsageError):
    """The input table as a whole cannot be used."""


class ModelError(UsageError):
    """The model cannot be found, verified or run by this engine."""


class MismatchError(UsageError):
    """The run directory holds results of another configuration."""


class EngineError(SpecbatchError):
    """The run failed part-way; finished rows are kept and the same command resumes."""

    exit_code = ExitCode.ENGINE


class StorageError(EngineError):
    """A file of the run directory could not be written or read back."""


class TooManyFailures(SpecbatchError):  # noqa: N818 - a verdict about the rows
    """``max_failures`` ended the run early; finished rows are kept and the same command resumes."""

    exit_code = ExitCode.ROW_FAILURES


class LockedError(SpecbatchError):
    """Another process is running in this run directory."""

    exit_code = ExitCode.LOCKED


class Interrupted(SpecbatchError):  # noqa: N818 - not an error of anything: the user asked
    """A signal ended the run; finished rows are committed."""

    def __init__(self, what: str, exit_code: ExitCode, hint: str = "") -> None:
        super().__init__(what, hint)
        self.exit_code = exit_code


class RowFault(Exception):  # noqa: N818 - a fact about a row that becomes data
    """One row cannot be answered. Its output row carries the code and the message.

    Args:
        code: Stable machine-readable name, e.g. ``"prompt_too_long"`` (table in the README).
        message: What is wrong with which column of the row, and what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class MeterFault(Exception):  # noqa: N818 - a fact about a machine that becomes data
    """An energy meter cannot be read; its text says which one and why. The run goes on without."""
