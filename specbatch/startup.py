"""Start-up in less time: no garbage collection while loading, and torch less in the way."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # a fiftieth of a second, for names of types
    from importlib.abc import Loader

UNTOUCHED = ("torch._meta_registrations",)
"""Modules of torch that compute shapes without data, for tracing: a third of ``import torch``."""


@contextmanager
def loading() -> Iterator[None]:
    """Load modules and models with the garbage collector off; it never looks at them afterwards.

    Loading makes hundreds of thousands of objects that live until the end. The collector would look at
    all of them several times on the way and once more when the interpreter ends: about a third of the
    time of ``import torch`` and exit.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def torch_meanwhile() -> Iterator[None]:
    """Load torch's main library on another core while this one does what needs no torch.

    Its symbols and its start take a quarter of ``import torch``, which finds it loaded then. The
    interpreter's lock is free meanwhile; the system's loader is not, so no other library can be loaded.
    Where the library has another name, nothing happens; what is wrong with it, ``import torch`` says.
    """
    found = None if "torch" in sys.modules else find_spec("torch")
    path = Path((found and found.origin) or "").parent / "lib" / "libtorch_cpu.so"
    if not path.is_file():
        yield
        return
    loader = Thread(target=_load_library, args=(path,))
    loader.start()
    try:
        yield
    finally:
        loader.join()


def _load_library(path: Path) -> None:
    """``ctypes.CDLL(path)`` would keep the interpreter's lock; a call of a function gives it away."""
    ctypes.CDLL(None).dlopen(str(path).encode(), os.RTLD_NOW)


@contextmanager
def deferring(*names: str) -> Iterator[None]:
    """Modules of these names that are imported meanwhile load when something in them is first asked for.

    ``importlib.util.LazyLoader`` would not do: it loads a module for a look at its ``__file__`` as well, and
    ``inspect``, which torch uses as it is imported, looks at that of every module.

    Args:
        names: Whole names; those that are loaded already stay loaded.
    """
    finder = _DeferringFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def load_deferred(*names: str) -> None:
    """Load what :func:`deferring` has put off, for code that counts on it without touching it.

    Args:
        names: Whole names; those that are loaded, or were never imported, stay as they are.
    """
    for name in names:
        module = sys.modules.get(name)
        if isinstance(module, _DeferredModule):
            module.load()


class _DeferredModule(ModuleType):
    """Has what the import system gives every module, and the rest after a first look at any of it."""

    def load(self) -> None:
        """Run the module; it is one like any other from then on."""
        self.__class__ = ModuleType  # type: ignore[assignment]  # a module may change its class
        loader = self.__dict__.pop("__deferred__")
        loader.exec_module(self)

    def __getattr__(self, name: str) -> Any:
        self.load()
        return getattr(self, name)


class _DeferringLoader:
    """Makes a module and leaves it empty."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__deferred__"] = self._inner
        module.__class__ = _DeferredModule


class _DeferringFinder:
    """Finds modules of some names, and gives them a loader that waits."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _DeferringLoader(spec.loader))
        return spec
