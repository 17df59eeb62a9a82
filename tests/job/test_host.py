"""Interrupts and the run clock."""

from __future__ import annotations

import os
import signal

import pytest

from specbatch.errors import ExitCode, Interrupted
from specbatch.job.host import RunClock
from specbatch.signals import Interrupts


def test_a_signal_raises_where_nothing_can_be_lost() -> None:
    with Interrupts(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == ExitCode.SIGTERM


def test_a_deferred_signal_waits_for_the_next_safe_point() -> None:
    with Interrupts() as interrupts:
        with interrupts.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.requested
        with pytest.raises(Interrupted) as caught:
            interrupts.check()
    assert caught.value.exit_code == ExitCode.SIGINT


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as outer:
        with Interrupts():
            pass
        with outer.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        assert outer.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_run_clock_goes_on_from_where_earlier_attempts_were() -> None:
    times = iter([103.0, 104.5])
    clock = RunClock(base=60.0, monotonic=lambda: next(times), started=100.0)
    assert clock.now() == 63.0
    assert clock.attempt_seconds() == 4.5
