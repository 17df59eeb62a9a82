"""What torch and the compiled kernels offer here, found out as cheaply as possible.

torch takes seconds to import. Its files say whether it was built for GPUs and the system says whether
there is a driver, so it is asked itself only where both are so. Whatever might break is asked in a
process of its own: a damaged installation must be reported, not suffered.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

DRIVERS = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))
"""Where a driver that torch can use leaves its traces: NVIDIA's, that of WSL, AMD's."""

_SECONDS = 120.0
_GPU_PROBE = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""
_KERNEL_PROBE = """
import json, sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = ExtensionFileLoader("_native", sys.argv[1])
module = module_from_spec(spec_from_loader("_native", loader))
loader.exec_module(module)
print(json.dumps(module.best_isa()))
"""


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that torch can use.

    Attributes:
        names: Of each.
        reason: Why there is none; empty when there is.
        error: Why torch cannot be used at all; empty when it can, or was not asked.
        hint: What would help; empty when nothing is wrong.
    """

    names: tuple[str, ...]
    reason: str
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled CPU kernels.

    Attributes:
        isa: Instruction set that they would use; empty when they cannot be used.
        reason: Why not.
    """

    isa: str
    reason: str


def find_gpus(report: Callable[[str], None], drivers: Sequence[Path] = DRIVERS) -> Gpus:
    """GPUs that torch can use.

    Args:
        report: Told before torch is imported, which takes a while.
        drivers: Files that exist where there is a driver.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Gpus((), "torch is not installed", "torch is not installed")
    if not any(path.exists() for path in drivers):
        return Gpus((), "no driver for one")
    if not _built_for_gpus(Path(spec.origin).with_name("version.py")):
        hint = "install a torch that is built for GPUs: https://pytorch.org/get-started/locally"
        return Gpus((), "there is a driver, but torch is built for CPUs only", hint=hint)
    report("asking torch for GPUs; importing it takes some seconds")
    answer, error = _ask(["-c", _GPU_PROBE])
    if not isinstance(answer, list):
        return Gpus((), "torch cannot be used", error, "pip install --force-reinstall torch")
    return Gpus(tuple(map(str, answer)), "" if answer else "none that torch can use")


def find_kernels() -> Kernels:
    """The compiled CPU kernels, loaded without the rest of their package, which needs torch."""
    spec = find_spec("specbatch_kernels")
    folders = [] if spec is None else [Path(place) / "cpu" for place in spec.submodule_search_locations or ()]
    built = [folder / f"_native{suffix}" for folder in folders for suffix in EXTENSION_SUFFIXES]
    there = [path for path in built if path.is_file()]
    if not there:
        return Kernels("", "the CPU kernels were not compiled for this installation")
    # Neither the user's nor anybody's packages: the kernels need none.
    answer, error = _ask(["-I", "-S", "-c", _KERNEL_PROBE, str(there[0])])
    if not isinstance(answer, str):
        return Kernels("", f"the CPU kernels cannot be loaded ({error})")
    return Kernels(answer, "")


def _built_for_gpus(version: Path) -> bool:
    """Whether torch's ``version.py`` names a CUDA or ROCm version; without the file, nobody knows."""
    if not version.is_file():
        return True
    text = version.read_text(encoding="utf-8", errors="replace")
    return re.search(r"^(?:cuda|hip|rocm)\b[^=\n]*=\s*['\"]\d", text, re.MULTILINE) is not None


def _ask(arguments: list[str]) -> tuple[object, str]:
    """What a program prints as JSON, or ``None`` and why there is nothing."""
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are ours
            [sys.executable, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_SECONDS:.0f} s"
    lines = done.stderr.strip().splitlines()
    error = lines[-1] if lines else f"python ended with code {done.returncode}"
    if done.returncode != 0:
        return None, error
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        return None, error
