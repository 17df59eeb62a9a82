"""The one check command: lint, format, types, tests. Stops at the first that fails.

Usage: ``python tests/check.py [PYTEST ARGUMENTS]``, from anywhere; arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


MOST_PROCESSES = 4
"""Each test process may hold a model and its K/V memory: two GiB are enough."""


def stages(pytest_args: list[str]) -> list[tuple[str, list[str]]]:
    """Name and module command line of every stage, in order."""
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    # A file's tests share models: they stay in one process, and tests/conftest.py says which come first.
    spread = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"] if processes > 1 else []
    return [
        ("lint", ["ruff", "check", "."]),
        ("format", ["ruff", "format", "--check", "."]),
        ("types", ["mypy", "--strict"]),
        ("tests", ["pytest", *spread, *pytest_args]),
    ]


def main(pytest_args: list[str]) -> int:
    """Runs the stages with this interpreter; returns the exit code of the first that fails, else 0."""
    # OpenMP workers that wait spin for milliseconds by default; on shared cores that starves their partners.
    environment = {"GOMP_SPINCOUNT": "2000", **os.environ}
    for name, command in stages(pytest_args):
        sys.stdout.write(f"== {name}: {' '.join(command)}\n")
        sys.stdout.flush()
        start = time.perf_counter()
        code = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=environment, check=False
        ).returncode
        seconds = time.perf_counter() - start
        if code:
            sys.stdout.write(f"== {name}: FAILED with exit code {code} after {seconds:.0f} s\n")
            return code
        sys.stdout.write(f"== {name}: passed in {seconds:.0f} s\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
