"""What a machine offers is found out without importing torch, unless there is a GPU to ask for."""

from __future__ import annotations

import json
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from specbatch.hardware import probes
from specbatch.hardware.probes import find_gpus, find_kernels


class Python:
    """Stands in for ``subprocess.run``.

    Args:
        answer: Printed by every program; ``None`` has it fail.
    """

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.programs: list[str] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.programs.append(" ".join(command))
        if self.answer is None:
            return subprocess.CompletedProcess(command, 1, "", "Traceback\nOSError: libcudart.so: broken")
        return subprocess.CompletedProcess(command, 0, json.dumps(self.answer), "")


def torch_built_for(folder: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n")
    found = ModuleSpec("torch", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(probes, "find_spec", lambda _name: found)


def test_torch_is_not_asked_where_it_cannot_have_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, said = Python(["H100"]), list[str]()
    monkeypatch.setattr(subprocess, "run", python)
    torch_built_for(tmp_path, "cuda: Optional[str] = '13.0'", monkeypatch)
    assert find_gpus(said.append, [tmp_path / "driver"]).reason == "no driver for one"
    (tmp_path / "driver").touch()
    torch_built_for(tmp_path, "cuda: Optional[str] = None", monkeypatch)
    found = find_gpus(said.append, [tmp_path / "driver"])
    assert (found.names, found.error) == ((), "")
    assert "built for CPUs only" in found.reason
    assert "pytorch.org" in found.hint
    monkeypatch.setattr(probes, "find_spec", lambda _name: None)
    assert find_gpus(said.append, [tmp_path / "driver"]).error == "torch is not installed"
    assert python.programs == said == []


def test_with_driver_and_build_torch_is_asked_and_that_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver").touch()
    torch_built_for(tmp_path, "cuda: Optional[str] = '13.0'", monkeypatch)
    for answer, names, error in ((["H100"], ("H100",), ""), ([], (), ""), (None, (), "libcudart.so: broken")):
        said: list[str] = []
        monkeypatch.setattr(subprocess, "run", Python(answer))
        found = find_gpus(said.append, [tmp_path / "driver"])
        assert found.names == names
        assert error in found.error
        assert bool(found.reason) == (not names)
        assert said == ["asking torch for GPUs; importing it takes some seconds"]


def test_kernels_are_loaded_for_themselves_or_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_kernels()
    assert found.isa in ("amx", "avx512", "avx2", "portable", "")
    package = ModuleSpec("specbatch_kernels", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(probes, "find_spec", lambda _name: package)
    assert find_kernels().reason == "the CPU kernels were not compiled for this installation"
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "_native.abi3.so").write_bytes(b"no library")
    assert find_kernels().reason.startswith("the CPU kernels cannot be loaded (ImportError: ")
