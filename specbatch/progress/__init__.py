"""Progress of a run on stderr: live on a terminal, plain lines or JSON objects in a log."""

from specbatch.progress.log import (
    HEARTBEAT_S,
    DatedReporter,
    JsonReporter,
    PlainReporter,
    write_dated,
    write_event,
)
from specbatch.progress.logfile import LogFile
from specbatch.progress.reporter import Reporter, open_reporter
from specbatch.progress.tally import Rate, Snapshot, Tally, duration

__all__ = [
    "HEARTBEAT_S",
    "DatedReporter",
    "JsonReporter",
    "LogFile",
    "PlainReporter",
    "Rate",
    "Reporter",
    "Snapshot",
    "Tally",
    "duration",
    "open_reporter",
    "write_dated",
    "write_event",
]
