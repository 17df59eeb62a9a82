"""The files of one model, and the digests that say whether two models are the same."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_dir

from specbatch.errors import ModelError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
SIDE_FILES = (CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE)
"""Everything besides the weights that shapes the text."""

MANIFEST = "manifest.json"
"""Beside converted side files, written last: its presence says that they are complete."""

CONVERSION = 1
"""Raised when converted side files change, so that older ones in a cache are left behind."""

_BLOCK = 1 << 20
_END = 256


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine's disk, ready to be loaded.

    Attributes:
        name: What the user asked for.
        directory: Holds ``config.json``, ``tokenizer.json`` and the other side files.
        weights: Files that hold the tensors, one GGUF file or one or more of safetensors.
        format: Of the weights.
        digest: SHA-256 of the weights, 64 hex digits.
        side_digest: SHA-256 of the side files: configuration, tokenizer, chat template.
        quantization: Most used block format of the weights, such as ``q4_1``; ``none`` when they
            are plain floating point.
    """

    name: str
    directory: Path
    weights: tuple[Path, ...]
    format: Literal["gguf", "safetensors"]
    digest: str
    side_digest: str
    quantization: str

    @property
    def num_bytes(self) -> int:
        """Size of the weights on disk, bytes."""
        return sum(path.stat().st_size for path in self.weights)


def cache_root() -> Path:
    """``SPECBATCH_CACHE`` when set, otherwise the platform's user cache directory."""
    chosen = os.environ.get("SPECBATCH_CACHE")
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("specbatch"))


def weights_digest(paths: Sequence[Path]) -> str:
    """SHA-256 of one weight file, or of the digests of several in the order given."""
    digests = [_memoised_digest(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def side_digest(directory: Path) -> str:
    """SHA-256 over names and contents of the side files that are present."""
    total = hashlib.sha256()
    for name in SIDE_FILES:
        path = directory / name
        if path.exists():
            total.update(f"{name} {file_digest(path)}\n".encode())
    return total.hexdigest()


def check_side_files(directory: Path, hint: str) -> None:
    """See that no side file was cut short, as a full disk or a killed copy leaves them.

    The ends of the files are looked at: none is empty, and those in JSON close their object. What else
    is wrong with them shows when they are read.

    Args:
        directory: Of the model.
        hint: How to get the files again.

    Raises:
        ModelError: Names the file.
    """
    for name in (*SIDE_FILES, MANIFEST):
        path = directory / name
        if path.is_file() and not _is_whole(path):
            raise ModelError(f"{path} is empty or cut short", hint)


def out_of_memory(error: Exception) -> bool:
    """Whether a file could not be read for want of memory, rather than for a fault of its own."""
    return isinstance(error, OSError) and (
        error.errno == errno.ENOMEM or os.strerror(errno.ENOMEM) in str(error)
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits, read in blocks.

    Raises:
        ModelError: The file cannot be read.
    """
    total = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                total.update(block)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return total.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that it is there in full or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        staged = Path(work) / path.name
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-min(_END, path.stat().st_size), os.SEEK_END)
            end = file.read().rstrip()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return end.endswith(b"}") if path.suffix == ".json" else bool(end)


def _memoised_digest(path: Path) -> str:
    """Digest remembered under path, size and modification time: hashing gigabytes takes seconds."""
    path = path.resolve()
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", "fetch the model again") from error
    stamp = [str(path), stat.st_size, stat.st_mtime_ns]
    memo = cache_root() / "digests" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    remembered = _read_memo(memo)
    if remembered is not None and remembered[0] == stamp:
        return remembered[1]
    digest = file_digest(path)
    with contextlib.suppress(OSError):  # a cache that is read-only costs time, not correctness
        write_atomically(memo, json.dumps({"stamp": stamp, "sha256": digest}))
    return digest


def _read_memo(memo: Path) -> tuple[list[object], str] | None:
    """What a memo says; ``None`` when there is none or it is not one of ours."""
    try:
        value = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("sha256"), str):
        return None
    stamp = value.get("stamp")
    return (stamp, value["sha256"]) if isinstance(stamp, list) else None
