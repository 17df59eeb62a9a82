"""Memory: what is free, what the K/V store may take, what the process has used."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


def available_bytes() -> int | None:
    """Memory this process may still take, limits of container and shell included; ``None`` if unknown."""
    found = [
        _meminfo_available(),
        _address_space_left(),
        *(_cgroup_available(*paths) for paths in _CGROUP_LIMITS),
    ]
    known = [size for size in found if size is not None]
    return min(known, default=None)


def container_limit_bytes() -> int | None:
    """Memory limit of the container or service this process runs in; ``None`` without one."""
    limits = [limit.read_text().strip() for limit, _usage in _CGROUP_LIMITS if limit.is_file()]
    # Version 1 spells "no limit" as a number beyond any memory.
    known = [int(limit) for limit in limits if limit != "max" and int(limit) < 1 << 60]
    return min(known, default=None)


def peak_resident_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _meminfo_available() -> int | None:
    if not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _address_space_left() -> int | None:
    """What ``ulimit -v`` leaves; ``None`` without such a limit."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not _STATM.is_file():
        return None
    return max(0, limit - int(_STATM.read_text().split()[0]) * resource.getpagesize())


def _cgroup_available(limit: Path, usage: Path) -> int | None:
    if not (limit.is_file() and usage.is_file()):
        return None
    most = limit.read_text().strip()
    return None if most == "max" else max(0, int(most) - int(usage.read_text()))
