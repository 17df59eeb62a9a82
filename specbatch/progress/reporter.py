"""Where progress goes, and which form suits a stream."""

from __future__ import annotations

import sys
from typing import Literal, Protocol, TextIO

from specbatch.progress.log import JsonReporter, PlainReporter
from specbatch.progress.tally import Snapshot, Tally


class Reporter(Protocol):
    """Where progress goes."""

    def message(self, text: str) -> None:
        """Say something that stays readable."""

    def warning(self, text: str) -> None:
        """Say something that somebody should look into."""

    def phase(self, name: str) -> None:
        """A stage before or after the engine's begins."""

    def begin(self, tally: Tally) -> None:
        """The engine starts; the tally is updated in place from now on."""

    def tick(self, snapshot: Snapshot) -> None:
        """The engine finished a step; must return at once."""

    def close(self) -> None:
        """Nothing more will come."""


def open_reporter(stream: TextIO | None = None, log_format: Literal["text", "json"] = "text") -> Reporter:
    """The reporter that suits a stream.

    Args:
        stream: Default: stderr.
        log_format: ``json`` is for programs, so it never draws, not even on a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if log_format == "json":
        return JsonReporter(stream)
    # Not the console's own opinion: FORCE_COLOR would make it draw into a log file.
    if not stream.isatty():
        return PlainReporter(stream)
    # Takes a twentieth of a second to import, which is nothing to the log of a nightly run.
    from rich.console import Console  # noqa: PLC0415

    from specbatch.progress.live import LiveReporter  # noqa: PLC0415

    console = Console(file=stream)
    return PlainReporter(stream) if console.is_dumb_terminal else LiveReporter(console)
