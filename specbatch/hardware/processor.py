"""What the processor calls itself."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """Model name of the CPU, or its architecture where the system tells no more."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
