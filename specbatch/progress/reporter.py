"""Where progress goes, and which form suits a stream."""

from __future__ import annotations

import sys
from typing import Literal, Protocol, TextIO

from rich.console import Console

from specbatch.progress.live import LiveReporter
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
    console = Console(file=stream)
    # Not the console's own opinion: FORCE_COLOR would make it draw into a log file.
    live = stream.isatty() and not console.is_dumb_terminal
    return LiveReporter(console) if live else PlainReporter(stream)
