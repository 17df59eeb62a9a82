"""Signals that arrive while libraries are loaded, which cannot stand an exception from a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from specbatch.errors import ExitCode, Interrupted
from specbatch.signals import Interrupts, held
from specbatch.text.tokenizer import Tokenizer


def test_a_signal_waits_until_it_can_be_told() -> None:
    reached = False

    def load() -> None:
        nonlocal reached
        with held():
            os.kill(os.getpid(), signal.SIGTERM)
            reached = not interrupts.requested

    with Interrupts() as interrupts, pytest.raises(Interrupted, match="SIGTERM") as stopped:
        load()
    assert reached
    assert stopped.value.exit_code == ExitCode.SIGTERM
    assert interrupts.requested


def test_without_a_signal_handlers_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_signal_does_not_wait() -> None:
    script = (
        "import os, signal\n"
        "from specbatch.signals import Interrupts, held\n"
        "with Interrupts(), held():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.SIGTERM, "")
    assert done.stderr == (
        "stopped at once by a second signal, SIGTERM: what was committed before is kept; "
        "run the same command to continue\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_process_ends_changes_nothing_about_its_end(number: signal.Signals) -> None:
    script = (
        "import atexit, os, sys\n"
        "from specbatch.cli import main\n"
        "again = lambda: os.kill(os.getpid(), int(sys.argv.pop()))\n"
        "atexit.register(again)\n"
        "tell = main._tell\n"
        "main._tell = lambda error: (os.kill(os.getpid(), int(sys.argv[-1])), tell(error))[1]\n"
        "sys.argv[1:] = ['run', 'none.parquet', '--out', 'x', '--limit', sys.argv[1]]\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(int(number))], capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.USAGE
    assert "none.parquet" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_is_not_taken_for_a_damaged_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_file(_path: str) -> tokenizers.Tokenizer:
        raise Interrupted("stopped by SIGINT", ExitCode.SIGINT)

    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(tokenizers, "Tokenizer", type("Fake", (), {"from_file": staticmethod(from_file)}))
    with pytest.raises(Interrupted):
        Tokenizer.load(tmp_path)
