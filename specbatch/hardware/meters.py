"""Energy meters: which there are, and whether this process may read them."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Meter:
    """One way of measuring energy.

    Attributes:
        name: ``RAPL`` (CPU package) or ``NVML`` (NVIDIA GPU).
        readable: Whether this process can read it now.
        reason: Why not, or what is covered.
        hint: What would help; empty when nothing does or nothing is needed.
    """

    name: str
    readable: bool
    reason: str
    hint: str = ""


def find_meters() -> tuple[Meter, ...]:
    """Look at all meters; nothing is measured."""
    return _rapl(_POWERCAP), _nvml(_NVIDIA_DRIVER)


def _rapl(root: Path) -> Meter:
    zones = sorted(root.glob("intel-rapl:[0-9]*/energy_uj"))
    if not zones:
        return Meter("RAPL", False, f"no counters in {root} (virtual machine, container or other CPU)")
    closed = [str(zone) for zone in zones if not os.access(zone, os.R_OK)]
    if closed:
        hint = f"as root: chmod a+r {root}/intel-rapl:*/energy_uj"
        return Meter("RAPL", False, f"{closed[0]} may be read by root only", hint)
    return Meter("RAPL", True, f"{len(zones)} zone{'s' if len(zones) > 1 else ''}")


def _nvml(driver: Path) -> Meter:
    if not driver.exists():
        return Meter("NVML", False, "no NVIDIA driver")
    if importlib.util.find_spec("pynvml") is None:
        return Meter("NVML", False, "nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    return Meter("NVML", True, driver.read_text().splitlines()[0])
