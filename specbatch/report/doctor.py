"""What this machine offers to a run, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specbatch import __version__
from specbatch.energy.find import MeterState, look_at_meters
from specbatch.hardware.memory import available_bytes, container_limit_bytes
from specbatch.hardware.probes import Gpus, Kernels, find_gpus, find_kernels
from specbatch.hardware.processor import processor_name
from specbatch.hardware.threads import usable_cores
from specbatch.models.catalog import CATALOG, DEFAULT_MODEL
from specbatch.models.files import cache_root
from specbatch.models.pull import is_installed

_PACKAGES = ("torch", "numpy", "pyarrow", "tokenizers", "transformers", "safetensors", "gguf", "vllm")
_OPTIONAL = frozenset({"vllm"})
_FEW_BYTES_FREE = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is missing, and what to do about it."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Disk:
    """Free space where something is kept; ``None`` when the path cannot be looked at."""

    purpose: str
    path: str
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was found. Sizes in bytes; ``None`` where the system does not say."""

    specbatch: str
    python: str
    executable: str
    system: str
    packages: dict[str, str | None]
    cpu: str
    cores: int
    usable_cores: int
    memory_total: int
    memory_available: int | None
    memory_limit: int | None
    disks: tuple[Disk, ...]
    gpus: Gpus
    kernels: Kernels
    meters: tuple[MeterState, ...]
    models: tuple[str, ...]
    missing: tuple[Finding, ...]

    def as_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return asdict(self)


def examine(report: Callable[[str], None]) -> Checkup:
    """Look at this machine.

    Args:
        report: Told of what takes a while.
    """
    packages = {name: _version(name) for name in _PACKAGES}
    gpus, kernels = find_gpus(report), find_kernels()
    disks = (_disk("model cache", cache_root()), _disk("working directory", Path.cwd()))
    meters = look_at_meters()
    models = _cached_models()
    return Checkup(
        specbatch=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        system=platform.platform(),
        packages=packages,
        cpu=processor_name(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        memory_total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        memory_available=available_bytes(),
        memory_limit=container_limit_bytes(),
        disks=disks,
        gpus=gpus,
        kernels=kernels,
        meters=meters,
        models=models,
        missing=(*_slow(gpus, kernels), *_missing(packages, disks, meters)),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _disk(purpose: str, path: Path) -> Disk:
    """Of the nearest folder that exists: a cache is made when it is first needed."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return Disk(purpose, str(path), shutil.disk_usage(place).free)
    except OSError:
        return Disk(purpose, str(path), None)


def _cached_models() -> tuple[str, ...]:
    """Aliases and Hugging Face ids that are on this machine's disk."""
    aliases = [alias for alias, entry in CATALOG.items() if is_installed(entry)]
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    found = sorted(hub.glob("models--*/snapshots")) if hub.is_dir() else []
    names = [path.parent.name.removeprefix("models--").replace("--", "/") for path in found]
    return (*aliases, *names)


def _slow(gpus: Gpus, kernels: Kernels) -> list[Finding]:
    """What keeps a run from computing as fast as it could."""
    found = []
    if gpus.hint:
        what = f"torch cannot be used: {gpus.error}" if gpus.error else f"GPU: {gpus.reason}"
        found.append(Finding(what, gpus.hint))
    if not kernels.isa:
        fix = "install a C compiler and reinstall specbatch"
        found.append(Finding(f"compiled CPU kernels: {kernels.reason}", fix))
    return found


def _missing(
    packages: dict[str, str | None], disks: tuple[Disk, ...], meters: tuple[MeterState, ...]
) -> list[Finding]:
    found = [
        Finding(f"package {name} is not installed", f"pip install {name}")
        for name, installed in packages.items()
        if installed is None and name not in _OPTIONAL
    ]
    found += [
        Finding(f"{disk.purpose} {disk.path}: little space left", "free some, or use another place")
        for disk in disks
        if disk.free_bytes is not None and disk.free_bytes < _FEW_BYTES_FREE
    ]
    found += [
        Finding(f"energy meter {meter.name}: {meter.reason}", meter.hint) for meter in meters if meter.hint
    ]
    if not is_installed(CATALOG[DEFAULT_MODEL]):
        fix = f"specbatch model pull {DEFAULT_MODEL} (the first run does it, too)"
        found.append(Finding(f"the default model {DEFAULT_MODEL} is not on this machine", fix))
    return found
