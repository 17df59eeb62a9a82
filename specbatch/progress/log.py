"""Progress as lines of a log. A log that nobody can read any more does not end the run."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from specbatch.progress.logfile import LineStream
from specbatch.progress.tally import Rate, Snapshot, Tally

HEARTBEAT_S = 30.0
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log.

    Attributes:
        name: For programs.
        text: For people.
        fields: For programs, JSON-ready.
        level: How much it matters.
    """

    name: str
    text: str
    fields: Mapping[str, object]
    level: Level = "info"


class LogReporter(ABC):
    """One line per phase, per tenth of the rows, and at least every ``heartbeat_s`` seconds.

    The heartbeat has a thread of its own: a log must not fall silent because a step or a load is slow.

    Args:
        stream: Gets the lines.
        heartbeat_s: Longest silence, seconds.
        alarms: Gets warnings as well, as text; for where nobody reads the log.
    """

    def __init__(
        self, stream: LineStream, heartbeat_s: float = HEARTBEAT_S, alarms: LineStream | None = None
    ) -> None:
        self._stream, self._heartbeat_s, self._alarms = stream, heartbeat_s, alarms
        self._lock = threading.Lock()
        self._written = time.monotonic()
        self._phase = "starting"
        self._tally: Tally | None = None
        self._rate: Rate | None = None
        self._snapshot: Snapshot | None = None
        self._tenth = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @abstractmethod
    def spell(self, event: Event) -> str:
        """The line of an event, without its end."""

    def message(self, text: str) -> None:
        """Write one line now."""
        self._write(Event("message", text, {"text": text}))

    def warning(self, text: str) -> None:
        """Write one line now that somebody should look into."""
        self._write(Event("message", f"warning: {text}", {"text": text}, "warning"))
        if self._alarms is not None:
            _put(self._alarms, f"warning: {text}")

    def phase(self, name: str) -> None:
        """Write the phase's name."""
        self._phase = name
        # What the engine counted belongs to the phase that is over.
        self._tally = None
        self._write(Event("phase", name, {"phase": name}))

    def begin(self, tally: Tally) -> None:
        """Write how much there is to do."""
        self._tally, self._rate = tally, Rate(tally)
        self._phase = "running"
        self._tenth = _tenth(tally)
        self._write(self._progress())

    def tick(self, snapshot: Snapshot) -> None:
        """Write a line when another tenth is complete."""
        self._snapshot = snapshot
        if self._tally is not None and _tenth(self._tally) > self._tenth:
            self._tenth = _tenth(self._tally)
            self._write(self._progress())

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        wait = self._heartbeat_s
        while not self._closed.wait(wait):
            wait = self._written + self._heartbeat_s - time.monotonic()
            if wait <= 0:
                self._write(self._progress())
                wait = self._heartbeat_s

    def _write(self, event: Event) -> None:
        with self._lock:
            self._written = time.monotonic()
            _put(self._stream, self.spell(event))

    def _progress(self) -> Event:
        tally, rate, snapshot = self._tally, self._rate, self._snapshot
        if tally is None or rate is None:
            return Event("progress", f"{self._phase} ...", {"phase": self._phase})
        described = rate.describe(snapshot)
        rows = f"{tally.done}/{tally.total} rows ({tally.share:.0%})"
        pace = rate.pace(snapshot)
        fields = {
            "phase": self._phase,
            "rows_done": tally.done,
            "rows_total": tally.total,
            "rows_failed": tally.failed,
            "rows_in_flight": None if snapshot is None else snapshot.rows_in_flight,
            "rows_waiting": None if snapshot is None else snapshot.rows_waiting,
            "output_tokens": tally.output_tokens if snapshot is None else snapshot.output_tokens,
            "tokens_per_s": _rounded(pace.tokens_per_s),
            "eta_s": _rounded(pace.eta_s),
            "attainment": tally.attainment,
        }
        return Event("progress", f"{rows}, {described}" if described else rows, fields)


class PlainReporter(LogReporter):
    """Lines for people: the time of day and a sentence."""

    def spell(self, event: Event) -> str:
        """``07:00:12 12/60 rows (20%), ...``."""
        return f"{time.strftime('%H:%M:%S')} {event.text}"


class DatedReporter(LogReporter):
    """Lines for people in a file of many nights: date, time and a sentence."""

    def spell(self, event: Event) -> str:
        """``2026-11-30 07:00:12 12/60 rows (20%), ...``."""
        return dated(event.text)


class JsonReporter(LogReporter):
    """Lines for programs: one JSON object each."""

    def spell(self, event: Event) -> str:
        """``{"time": ..., "level": ..., "event": ..., ...}``."""
        return _object(event.name, event.fields, event.level)


def write_event(stream: LineStream, name: str, fields: Mapping[str, object], level: Level = "info") -> None:
    """Write one line as :class:`JsonReporter` does, before or after there is one."""
    _put(stream, _object(name, fields, level))


def write_dated(stream: LineStream, text: str) -> None:
    """Write one line as :class:`DatedReporter` does."""
    _put(stream, dated(text))


def dated(text: str) -> str:
    """A line with date and time in front."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"


def _object(name: str, fields: Mapping[str, object], level: Level) -> str:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": moment, "level": level, "event": name, **fields}, ensure_ascii=False)


def _put(stream: LineStream, line: str) -> None:
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except (OSError, ValueError):
        # The reader left, the disk is full or the stream is closed: rows are worth more than lines.
        return


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _tenth(tally: Tally) -> int:
    return 10 * tally.done // max(1, tally.total)
