"""Progress of a long stage: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

HEARTBEAT_S = 30.0


class Meter:
    """Counts towards a total; use as a context manager.

    Args:
        name: What is going on.
        total: Where it ends.
        unit: What is counted.
        stream: Default: stderr.
    """

    def __init__(self, name: str, total: int, unit: str, stream: TextIO | None = None) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._stream = sys.stderr if stream is None else stream
        self._began = self._written = time.monotonic()
        self._first: int | None = None
        self._bar = (
            tqdm(total=total, desc=name, unit=unit, unit_scale=True, file=self._stream, leave=False)
            if self._stream.isatty()
            else None
        )

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int, detail: str = "") -> None:
        """Say how far it is.

        Args:
            count: Done so far, in all.
            detail: Further numbers.
        """
        if self._first is None:
            self._first = count
        if self._bar is not None:
            self._bar.n = min(count, self._total)
            self._bar.set_postfix_str(detail, refresh=False)
            self._bar.update(0)
            return
        now = time.monotonic()
        if now - self._written >= HEARTBEAT_S:
            self._written = now
            rate = (count - self._first) / (now - self._began)
            left = (self._total - count) / rate / 60 if rate > 0 else float("inf")
            pace = f"{rate:,.0f}/s, {left:.0f} min left{detail and ', '}{detail}"
            self.message(f"{self._name}: {count:,} of {self._total:,} {self._unit}, {pace}")

    def message(self, text: str) -> None:
        """Say something that stays readable."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
            return
        self._stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._stream.flush()
