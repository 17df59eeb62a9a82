"""Which meters there are, and which one measures a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbatch.energy.meter import AssumedWatts, EnergyMeter, NoMeter
from specbatch.energy.nvml import find_nvml
from specbatch.energy.rapl import POWERCAP, find_rapl


@dataclass(frozen=True, slots=True)
class MeterState:
    """A meter as ``specbatch doctor`` tells of it.

    Attributes:
        name: ``RAPL`` (CPU packages) or ``NVML`` (NVIDIA GPUs).
        readable: Whether this process can read it now.
        reason: Why not, or what is covered.
        hint: What would help; empty when nothing does or nothing is needed.
    """

    name: str
    readable: bool
    reason: str
    hint: str = ""


def look_at_meters(root: Path = POWERCAP) -> tuple[MeterState, ...]:
    """Open all meters and close them again.

    Args:
        root: Where powercap shows its zones.
    """
    found: tuple[tuple[str, EnergyMeter | NoMeter], ...] = (("RAPL", find_rapl(root)), ("NVML", find_nvml()))
    states = []
    for name, meter in found:
        if isinstance(meter, NoMeter):
            states.append(MeterState(name, False, meter.reason.removeprefix(f"{name}: "), meter.hint))
        else:
            states.append(MeterState(name, True, meter.scope))
            meter.close()
    return tuple(states)


def open_meter(
    device: str, assume_watts: float | None = None, boards: Sequence[str] = (), root: Path = POWERCAP
) -> EnergyMeter | NoMeter:
    """The meter for a device.

    Args:
        device: ``cpu``, ``cuda``, or ``auto`` for the first one that can be measured.
        assume_watts: What to assume instead of measuring.
        boards: UUIDs of the GPUs in use; none: all.
        root: Where powercap shows its zones.
    """
    if assume_watts is not None:
        return AssumedWatts(assume_watts)
    if device == "cpu":
        return find_rapl(root)
    gpu = find_nvml(boards)
    if device == "cuda" or not isinstance(gpu, NoMeter):
        return gpu
    cpu = find_rapl(root)
    if isinstance(cpu, NoMeter):
        return NoMeter(f"{gpu.reason}; {cpu.reason}", cpu.hint or gpu.hint)
    return cpu
