"""RAPL: the energy counters of processors, as Linux shows them under powercap.

A zone ``intel-rapl:P`` named ``package-…`` counts a whole socket; AMD's processors have the same zones.
Its subzones ``core`` and ``uncore`` are parts of it, a top-level ``psys`` is the platform with the packages
in it, and ``intel-rapl-mmio`` shows the packages a second time: none of these is added. ``dram`` is no
part of the package, so it is. Counters wrap around after ``max_energy_range_uj``
(Linux, Documentation/power/powercap/powercap.rst).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from specbatch.energy.meter import Method, NoMeter
from specbatch.errors import MeterFault

POWERCAP = Path("/sys/class/powercap")

_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")


@dataclass(slots=True)
class _Zone:
    """One counter that is added.

    Attributes:
        last_uj: What it showed when it was read last.
        range_uj: Where it wraps around.
    """

    path: Path
    name: str
    range_uj: int
    last_uj: int = 0

    def advance(self) -> int:
        """Microjoules since the last call."""
        now = self.show()
        passed = now - self.last_uj
        self.last_uj = now
        # At the wrap the counter goes from the range back to 0.
        return passed if passed >= 0 else passed + self.range_uj

    def show(self) -> int:
        """The counter.

        Raises:
            MeterFault: It cannot be read.
        """
        return _number(self.path / "energy_uj")


class RaplMeter:
    """Packages and memory of the whole machine.

    It has to be read once before the counters wrap around: at 250 W that is every 17 minutes.

    Args:
        zones: What is added.
    """

    method: Method = "rapl"

    def __init__(self, zones: list[_Zone]) -> None:
        self._zones, self._total_uj = zones, 0
        for zone in zones:
            zone.last_uj = zone.show()

    @property
    def scope(self) -> str:
        """Which counters."""
        names = [zone.name for zone in self._zones]
        memory = "" if any(name == "dram" for name in names) else "; memory has no counter here"
        return f"CPU {', '.join(names)}: all of it, other processes included{memory}"

    def joules(self) -> float:
        """Of all zones since it was opened.

        Raises:
            MeterFault: A counter cannot be read any more.
        """
        self._total_uj += sum(zone.advance() for zone in self._zones)
        return self._total_uj * 1e-6

    def close(self) -> None:
        """Files are opened for each reading."""


def find_rapl(root: Path = POWERCAP) -> RaplMeter | NoMeter:
    """Open the counters of this machine.

    Args:
        root: Where powercap shows its zones.
    """
    try:
        zones = [path for path in sorted(root.glob("intel-rapl:*")) if _counts(path)]
        if not any(_is_top(path) for path in zones):
            return NoMeter(f"RAPL: no counters in {root} (virtual machine, container or other CPU)")
        closed = [path for path in zones if not os.access(path / "energy_uj", os.R_OK)]
        if closed:
            hint = f"as root: chmod a+r {root}/intel-rapl:*/energy_uj"
            return NoMeter(f"RAPL: {closed[0] / 'energy_uj'} may be read by root only", hint)
        return RaplMeter(
            [_Zone(path, _text(path / "name"), _number(path / "max_energy_range_uj")) for path in zones]
        )
    except MeterFault as fault:
        return NoMeter(f"RAPL: {fault}")


def _counts(path: Path) -> bool:
    """Whether a zone is added."""
    if _ZONE.fullmatch(path.name) is None or not (path / "energy_uj").exists():
        return False
    name = _text(path / "name")
    return name.startswith("package") if _is_top(path) else name == "dram"


def _is_top(path: Path) -> bool:
    return path.name.count(":") == 1


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise MeterFault(f"{path} cannot be read: {error}") from error


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdecimal():
        raise MeterFault(f"{path} holds {text!r}, not a number")
    return int(text)
