"""How much of the machine other processes took meanwhile: what is measured beside them says little."""

from __future__ import annotations

import os
import time
from pathlib import Path

from specbatch.hardware.threads import usable_core_numbers, usable_cores

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of a line that are no work: idle, and idle until a disk answers."""

_COUNTED = 8
"""Columns that do not contain each other; guests, behind them, are counted as user already."""


class Neighbours:
    """Watches from its making on, those cores that this process may use.

    Args:
        stat: Counters of the kernel.
        tick_s: Seconds that they count in; by default, what the system says.
    """

    def __init__(self, stat: Path = _STAT, tick_s: float | None = None) -> None:
        self._stat = stat
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK") if tick_s is None else tick_s
        self._began = (time.perf_counter(), self._all_s(), time.process_time())

    def share(self) -> float | None:
        """CPU time of others so far as a share of all there was; ``None`` where the system does not count."""
        wall, everybody, own = self._began
        now = self._all_s()
        if now is None or everybody is None:
            return None
        others = now - everybody - (time.process_time() - own)
        available = (time.perf_counter() - wall) * usable_cores()
        return min(1.0, max(0.0, others / available)) if available > 0.0 else None

    def _all_s(self) -> float | None:
        """CPU seconds that everybody has had of these cores since the machine was started."""
        ours = {f"cpu{number}" for number in usable_core_numbers()}
        try:
            lines = [line.split() for line in self._stat.read_text().splitlines()]
        except OSError:  # not Linux
            return None
        counters = [line[1 : 1 + _COUNTED] for line in lines if line and line[0] in ours]
        return self._tick_s * sum(
            int(field) for each in counters for i, field in enumerate(each) if i not in _IDLE
        )
