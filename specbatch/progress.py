"""Progress of a run on stderr: live on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

HEARTBEAT_S = 30.0
_REFRESH_S = 0.25


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the engine reports after a step.

    Attributes:
        phase: What it is doing, one word.
        output_tokens: Produced by this attempt so far.
    """

    phase: str
    rows_in_flight: int
    rows_waiting: int
    output_tokens: int


@dataclass(slots=True)
class Tally:
    """Rows that ended so far, earlier attempts included. Shared with the reporter, which only reads it."""

    total: int = 0
    done: int = 0
    failed: int = 0
    slo_met: int = 0
    slo_missed: int = 0
    output_tokens: int = 0

    @property
    def attainment(self) -> float | None:
        """Share of rows with promises that kept them; ``None`` while there are none."""
        promised = self.slo_met + self.slo_missed
        return self.slo_met / promised if promised else None


class Reporter(Protocol):
    """Where progress goes."""

    def message(self, text: str) -> None:
        """Say something that stays readable."""

    def phase(self, name: str) -> None:
        """A stage before or after the engine's begins."""

    def begin(self, tally: Tally) -> None:
        """The engine starts; the tally is updated in place from now on."""

    def tick(self, snapshot: Snapshot) -> None:
        """The engine finished a step; must return at once."""

    def close(self) -> None:
        """Nothing more will come."""


class Rate:
    """Rows and tokens per second since the engine began.

    Args:
        tally: As the engine begins; ``done`` then is not this attempt's work.
        clock: Monotonic seconds.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._tally, self._clock = tally, clock
        self._started, self._done_before = clock(), tally.done

    def describe(self, snapshot: Snapshot | None) -> str:
        """Tokens per second, rows in flight, time left and attainment, as far as known."""
        elapsed = max(1e-9, self._clock() - self._started)
        done = self._tally.done - self._done_before
        parts: list[str] = []
        if snapshot is not None:
            parts.append(f"{snapshot.output_tokens / elapsed:.0f} tokens/s")
            parts.append(f"{snapshot.rows_in_flight} in flight")
        if done:
            parts.append(f"ETA {duration((self._tally.total - self._tally.done) * elapsed / done)}")
        if self._tally.failed:
            parts.append(f"{self._tally.failed} failed")
        if self._tally.attainment is not None:
            parts.append(f"SLO {self._tally.attainment:.0%}")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """``75`` → ``1m15s``; at most two units."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


class PlainReporter:
    """One line per phase, per tenth of the rows, and at least every ``heartbeat_s`` seconds.

    The heartbeat has a thread of its own: a log must not fall silent because a step or a load is slow.
    """

    def __init__(self, stream: TextIO, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream, self._heartbeat_s = stream, heartbeat_s
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

    def message(self, text: str) -> None:
        """Write one line now."""
        with self._lock:
            self._stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._stream.flush()
            self._written = time.monotonic()

    def phase(self, name: str) -> None:
        """Write the phase's name."""
        self._phase = name
        self.message(name)

    def begin(self, tally: Tally) -> None:
        """Write how much there is to do."""
        self._tally, self._rate = tally, Rate(tally)
        self._phase = "running"
        self._tenth = _tenth(tally)
        self.message(self._line())

    def tick(self, snapshot: Snapshot) -> None:
        """Write a line when another tenth is complete."""
        self._snapshot = snapshot
        if self._tally is not None and _tenth(self._tally) > self._tenth:
            self._tenth = _tenth(self._tally)
            self.message(self._line())

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        wait = self._heartbeat_s
        while not self._closed.wait(wait):
            wait = self._written + self._heartbeat_s - time.monotonic()
            if wait <= 0:
                self.message(self._line())
                wait = self._heartbeat_s

    def _line(self) -> str:
        if self._tally is None or self._rate is None:
            return f"{self._phase} ..."
        share = self._tally.done / max(1, self._tally.total)
        described = self._rate.describe(self._snapshot)
        return f"{self._tally.done}/{self._tally.total} rows ({share:.0%})" + (
            f", {described}" if described else ""
        )


class LiveReporter:
    """A progress bar that redraws itself.

    Args:
        console: On stderr; knows whether colours are wanted (``NO_COLOR``).
    """

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
        )
        self._progress = Progress(
            *columns, console=console, refresh_per_second=4, transient=True, expand=True
        )
        self._task: TaskID = self._progress.add_task("starting", total=None, detail="")
        self._tally: Tally | None = None
        self._rate: Rate | None = None
        self._drawn = 0.0
        self._progress.start()

    def message(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def phase(self, name: str) -> None:
        """Rename the bar."""
        self._progress.update(self._task, description=name)

    def begin(self, tally: Tally) -> None:
        """Show rows from now on."""
        self._tally, self._rate = tally, Rate(tally)
        self._progress.update(self._task, description="running", total=tally.total, completed=tally.done)

    def tick(self, snapshot: Snapshot) -> None:
        """Update the numbers a few times per second."""
        now = time.monotonic()
        if now - self._drawn < _REFRESH_S or self._tally is None or self._rate is None:
            return
        self._drawn = now
        self._progress.update(self._task, completed=self._tally.done, detail=self._rate.describe(snapshot))

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def open_reporter(stream: TextIO | None = None) -> Reporter:
    """The reporter that suits a stream (default: stderr)."""
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream)
    # Not the console's own opinion: FORCE_COLOR would make it draw into a log file.
    live = stream.isatty() and not console.is_dumb_terminal
    return LiveReporter(console) if live else PlainReporter(stream)


def _tenth(tally: Tally) -> int:
    return 10 * tally.done // max(1, tally.total)
