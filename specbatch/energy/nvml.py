"""NVML: the energy counter of NVIDIA's boards (millijoules since the driver was loaded).

Boards that have none (before Volta) report power, which is integrated instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from specbatch.energy.integral import PowerIntegral
from specbatch.energy.meter import Method, NoMeter
from specbatch.errors import MeterFault

DRIVERS = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")))
"""Where NVIDIA's driver leaves its traces, also that of WSL."""


class NvmlMeter:
    """Some boards, each as a whole.

    Args:
        nvml: The module ``pynvml``, initialised.
        handles: Of the boards.
    """

    method: Method = "nvml"

    def __init__(self, nvml: ModuleType, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._integrals: list[PowerIntegral] = []
        self._boards = [self._counter_of(handle) for handle in handles]
        self._start = [read() for read in self._boards]
        for integral in self._integrals:
            integral.start()
        names = [_said(nvml.nvmlDeviceGetName(handle)) for handle in handles]
        self._what = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    @property
    def scope(self) -> str:
        """Which boards, and how."""
        how = "their energy counters" if len(self._boards) > 1 else "its energy counter"
        if self._integrals:
            how = "samples of power, integrated"
        return f"GPU {self._what}, whole boards, by {how}; CPU and memory of the machine are not in it"

    def joules(self) -> float:
        """Of all boards since it was opened.

        Raises:
            MeterFault: A board cannot be read any more.
        """
        return sum(read() - start for read, start in zip(self._boards, self._start, strict=True))

    def close(self) -> None:
        """Stop sampling, and let go of the library."""
        for integral in self._integrals:
            integral.close()
        self._nvml.nvmlShutdown()

    def _counter_of(self, handle: Any) -> Callable[[], float]:
        nvml = self._nvml

        def energy() -> float:
            return 1e-3 * float(self._asked(nvml.nvmlDeviceGetTotalEnergyConsumption, handle))

        def power() -> float:
            return 1e-3 * float(self._asked(nvml.nvmlDeviceGetPowerUsage, handle))

        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except nvml.NVMLError:
            integral = PowerIntegral(power)
            self._integrals.append(integral)
            return integral.joules
        return energy

    def _asked(self, question: Callable[[Any], int], handle: Any) -> int:
        try:
            return question(handle)
        except self._nvml.NVMLError as error:
            raise MeterFault(f"NVML: {error}") from error


def find_nvml(boards: Sequence[str] = ()) -> NvmlMeter | NoMeter:
    """Open the meters of boards.

    Args:
        boards: Their UUIDs, also of MIG devices, for which the board that they are a part of is measured;
            none: all boards of the machine.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        if not any(trace.exists() for trace in DRIVERS):
            return NoMeter("NVML: no NVIDIA driver")
        return NoMeter("NVML: nvidia-ml-py is not installed", 'pip install "specbatch[nvml]"')
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NoMeter(f"NVML: {error}")
    try:
        handles = _handles(nvml, boards)
        if not handles:
            raise MeterFault("there is no board")
        return NvmlMeter(nvml, handles)
    except (nvml.NVMLError, MeterFault) as error:
        nvml.nvmlShutdown()
        return NoMeter(f"NVML: {str(error).removeprefix('NVML: ')}")


def _handles(nvml: ModuleType, boards: Sequence[str]) -> list[Any]:
    """Handles of whole boards, each once."""
    if not boards:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    found: dict[str, Any] = {}
    for uuid in boards:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if nvml.nvmlDeviceIsMigDeviceHandle(handle):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        found[_said(nvml.nvmlDeviceGetUUID(handle))] = handle
    return list(found.values())


def _said(text: str | bytes) -> str:
    """Older versions of the library answer in bytes."""
    return text.decode() if isinstance(text, bytes) else text
