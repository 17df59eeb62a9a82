"""A powercap tree, and an NVML, as they look to those who read them."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RANGE_UJ = 262_143_328_850


def zone(root: Path, place: str, name: str, microjoules: int = 1000) -> Path:
    """One zone; the kernel shows all of them side by side."""
    folder = root / place
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    show(folder, microjoules)
    return folder


def show(folder: Path, microjoules: int) -> None:
    """Have a counter show this."""
    (folder / "energy_uj").write_text(f"{microjoules}\n")


class NVMLError(Exception):
    """What the library raises."""


@dataclass
class Board:
    """One GPU."""

    uuid: str
    name: str = "NVIDIA H200"
    energy_mj: int | None = 5_000
    power_mw: int = 100_000
    parent: Board | None = None


class FakeNvml(types.ModuleType):
    """The functions of ``pynvml`` that are called, over boards in memory."""

    NVMLError = NVMLError

    def __init__(self, boards: Iterable[Board], *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.boards, self.driver, self.open = list(boards), driver, 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return sum(board.parent is None for board in self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:  # noqa: N802
        return [board for board in self.boards if board.parent is None][index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Board:  # noqa: N802
        for board in self.boards:
            if board.uuid == uuid:
                return board
        raise NVMLError("Not Found")

    def nvmlDeviceIsMigDeviceHandle(self, board: Board) -> bool:  # noqa: N802
        return board.parent is not None

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, board: Board) -> Board:  # noqa: N802
        assert board.parent is not None
        return board.parent

    def nvmlDeviceGetUUID(self, board: Board) -> str:  # noqa: N802
        return board.uuid

    def nvmlDeviceGetName(self, board: Board) -> bytes:  # noqa: N802
        return board.name.encode()

    def nvmlDeviceGetTotalEnergyConsumption(self, board: Board) -> int:  # noqa: N802
        if board.energy_mj is None:
            raise NVMLError("Not Supported")
        return board.energy_mj

    def nvmlDeviceGetPowerUsage(self, board: Board) -> int:  # noqa: N802
        if board.power_mw < 0:
            raise NVMLError("GPU is lost")
        return board.power_mw
