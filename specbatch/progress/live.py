"""Progress on a terminal: one line that redraws itself."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column

from specbatch.progress.tally import Rate, Snapshot, Tally

_REFRESH_S = 0.25
_WIDE = 100


class LiveReporter:
    """A progress bar that redraws itself.

    Args:
        console: On stderr; knows whether colours are wanted (``NO_COLOR``).
    """

    def __init__(self, console: Console) -> None:
        is_wide = console.width >= _WIDE
        # On a wide terminal the bar takes the room that is left, on a narrow one the numbers do.
        numbers = Column(no_wrap=True, overflow="ellipsis", ratio=None if is_wide else 1)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None if is_wide else 10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}", table_column=numbers),
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

    def warning(self, text: str) -> None:
        """Print above the bar."""
        self.message(f"warning: {text}")

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
        detail = self._rate.fields(snapshot, narrow=self._progress.console.width < _WIDE)
        self._progress.update(self._task, completed=self._tally.done, detail=detail)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
