"""SIGINT and SIGTERM: stop at once where nothing can be lost, at the next safe point elsewhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from specbatch.errors import ExitCode, Interrupted

_AT_ONCE = "what was committed before is kept; run the same command to continue"
_EXIT_CODES = {signal.SIGINT: ExitCode.SIGINT, signal.SIGTERM: ExitCode.SIGTERM}


@contextmanager
def held() -> Iterator[None]:
    """Inside, a first signal waits for the end; a second one ends the process on the spot.

    For imports of libraries that abort when a handler raises while they call Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        if arrived:
            _leave(signal.Signals(number))
        arrived.append(number)

    before = {number: signal.signal(number, keep) for number in _EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in arrived:
            signal.raise_signal(each)


def _leave(received: signal.Signals) -> NoReturn:
    """End the process on the spot: like a kill, but for a word about it."""
    with suppress(OSError):  # nobody reads stderr any more
        os.write(2, f"stopped at once by a second signal, {received.name}: {_AT_ONCE}\n".encode())
    os._exit(_EXIT_CODES[received])


class Interrupts:
    """Handlers for the time of a run; use as a context manager.

    The first signal raises :class:`Interrupted` in the main thread, or, inside :meth:`deferred`, only
    sets :attr:`requested`. A second signal ends the process on the spot; signals that come before the first
    one was noticed (a library is at work, say) are one with it.

    Args:
        last: Nothing comes after but the end of the process, which has its exit code: signals are ignored
            from then on, since the interpreter, while it ends, would die of them.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self._received: signal.Signals | None = None
        self._deferred = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        # Python allows handlers in the main thread only; elsewhere the embedding program decides.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _EXIT_CODES}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self._last else handler)  # type: ignore[arg-type]

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._received is not None

    def check(self) -> None:
        """A safe point.

        Raises:
            Interrupted: A signal has arrived.
        """
        if self._received is not None:
            raise self._interrupted(self._received)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, signals wait for :meth:`check`."""
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self._received is not None:
            _leave(received)
        self._received = received
        if not self._deferred:
            raise self._interrupted(received)

    @staticmethod
    def _interrupted(received: signal.Signals) -> Interrupted:
        hint = "finished rows are kept; run the same command to continue"
        return Interrupted(f"stopped by {received.name}", _EXIT_CODES[received], hint)
