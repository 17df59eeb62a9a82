"""The command line as people call it: in this process, or in one of its own where the process matters."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specbatch.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def settings(**more: str) -> dict[str, str]:
    """Environment of a command: of specbatch's own variables, only where the models are is kept.

    Nothing is measured for a run that names no policy.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SPECBATCH_CACHE" or not name.startswith("SPECBATCH_")
    }
    return {"SPECBATCH_POLICY": "off", **kept, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1", **more}


def called(*args: str, cwd: Path | None = None, **environ: str) -> Done:
    """Run a command in this process, from its entry point to its exit code."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["specbatch", *args])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # else it would be python -m pytest
        wanted = settings(**environ)
        for name in set(os.environ) - set(wanted):
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            main.main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert isinstance(code, int), code
    written = []
    for stream in (out, err):
        raw = stream.detach()
        assert isinstance(raw, io.BytesIO)
        written.append(raw.getvalue().decode())
    return Done(code, *written)


def started(*args: str, cwd: Path | None = None, **environ: str) -> Done:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "specbatch", *args]
    done = subprocess.run(
        command, cwd=cwd, env=settings(**environ), capture_output=True, text=True, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def as_json(result: Done) -> dict[str, Any]:
    """The one object that ``--json`` printed."""
    content: dict[str, Any] = json.loads(result.stdout)
    assert content["schema_version"] == 1
    return content
