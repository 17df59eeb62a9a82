"""The command line with the fake engine and a clock of its own, as cron would start it.

It imports everything once and then forks for every line on its stdin, a JSON object (:class:`Command`):
the child runs ``specbatch`` with these arguments and writes to files; the number of the process is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from specbatch.cli import main as entry
from specbatch.job import surroundings

from .fake_engine import FILES, FakeEngine, World


@dataclass(frozen=True)
class Command:
    """One line of a crontab, at some time.

    Attributes:
        args: Of ``specbatch``.
        cwd: Working directory.
        now: Unix seconds that its clock shows at the start.
        digest: Of the model.
        slow: Wait this long before each row, seconds.
        gate: Wait for this file before the fourth row; empty for none.
        output: Stem of the files that stdout and stderr go to.
    """

    args: tuple[str, ...]
    cwd: str
    now: float
    output: str
    digest: str = "model-1"
    slow: float = 0.0
    gate: str = ""


def child(command: Command) -> None:
    """Run it in this process, and end."""
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{command.output}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.chdir(command.cwd)
    began, served = time.time(), 0

    def before_row(_row: int) -> None:
        nonlocal served
        served += 1
        time.sleep(command.slow)
        while command.gate and served == 4 and not Path(command.gate).exists():
            time.sleep(0.01)

    world = World(FakeEngine(before_row=before_row), files=replace(FILES, digest=command.digest))
    world.wall = lambda: command.now + time.time() - began

    def staged(**given: Any) -> surroundings.Surroundings:
        return replace(world.surroundings(), **given)

    surroundings.Surroundings = staged  # type: ignore[assignment, misc]
    sys.argv = ["specbatch", *command.args]
    code: object = 0
    try:
        entry.main()
    except SystemExit as end:
        code = end.code
    os._exit(code if isinstance(code, int) else 1)


def serve() -> None:
    """Fork for every line; answer with process numbers and, for an empty line, with exit codes."""
    for module in ("cli.app", "cli.run", "cli.clean", "job.run", "job.clean", "report.terminal"):
        importlib.import_module(f"specbatch.{module}")  # so that the children need not
    for line in sys.stdin:
        if line.startswith("wait "):
            code = os.waitstatus_to_exitcode(os.waitpid(int(line.split()[1]), 0)[1])
            sys.stdout.write(f"{code}\n")
        else:
            pid = os.fork()
            if pid == 0:
                child(Command(**json.loads(line)))
            sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


@dataclass
class Cron:
    """Starts commands at given times in a folder, and waits for them."""

    server: subprocess.Popen[str]
    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Cron:
        """Start the program."""
        command = [sys.executable, "-m", "tests.job.night_program"]
        root = Path(__file__).resolve().parents[2]
        paths = [str(root), str(root / "kernels"), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TZ": "UTC", "COLUMNS": "80"}
        server = subprocess.Popen(
            command, cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return cls(server, folder)

    def start(self, now: float, *args: str, **more: Any) -> int:
        """Start; the number of the process."""
        output = str(self.folder / f"output-{now:.0f}")
        command = Command(args, str(self.folder), now, output, **more)
        return int(self._ask(json.dumps(asdict(command))))

    def wait(self, pid: int) -> int:
        """Exit code, or minus the signal."""
        return int(self._ask(f"wait {pid}"))

    def at(self, now: float, *args: str, **more: Any) -> int:
        """Start and wait: the exit code."""
        return self.wait(self.start(now, *args, **more))

    def said(self, now: float, kind: str = "err") -> str:
        """What the command of that time wrote."""
        return (self.folder / f"output-{now:.0f}.{kind}").read_text("utf-8")

    def end(self, pid: int, number: signal.Signals, parts: Path, count: int) -> int:
        """Signal a process once so many parts are there: its exit code."""
        self.wait_for(parts, count)
        os.kill(pid, number)
        return self.wait(pid)

    def wait_for(self, parts: Path, count: int) -> None:
        """Until so many parts are there."""
        limit = time.monotonic() + 60
        while len(list(parts.glob("part-*.parquet"))) < count:
            if time.monotonic() > limit:
                pytest.fail("no parts appeared")
            time.sleep(0.005)

    def close(self) -> None:
        """End the program."""
        self.server.communicate(timeout=60)

    def _ask(self, line: str) -> str:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()
        return self.server.stdout.readline()


if __name__ == "__main__":
    serve()
