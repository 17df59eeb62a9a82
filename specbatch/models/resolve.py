"""From what the user wrote after ``--model`` to files on disk.

Imports neither torch nor a model library: a finished job asks for the model's digest and must end
in well under a second.
"""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from specbatch.errors import ModelError
from specbatch.models.catalog import CATALOG
from specbatch.models.config import read_json
from specbatch.models.files import (
    CONFIG,
    CONVERSION,
    MANIFEST,
    TOKENIZER,
    ModelFiles,
    cache_root,
    check_side_files,
    side_digest,
    weights_digest,
)
from specbatch.models.pull import installed_directory, is_installed, pull

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_INDEX = "model.safetensors.index.json"


def resolve_model(spec: str, *, allow_download: bool = True, report: Callable[[str], None]) -> ModelFiles:
    """Find a model, fetching it when it is not on this machine.

    Args:
        spec: An alias of the catalogue, a directory of safetensors or of one ``.gguf`` file, such a
            file, or a Hugging Face id, optionally with ``@revision``; looked up in that order.
        allow_download: Whether the network may be used.
        report: Receives progress, one line each.

    Raises:
        ModelError: There is no such model, or it cannot be fetched or used.
    """
    if spec in CATALOG:
        entry = CATALOG[spec]
        if not allow_download and not is_installed(entry):
            raise ModelError(f"{spec} is not on this machine", f"run: specbatch model pull {spec}")
        pull(entry, report)
        directory = installed_directory(entry)
        files = _gguf_files(spec, directory / Path(entry.member).name, directory)
        if files.digest != entry.member_sha256:
            raise ModelError(f"{files.weights[0]} is damaged", _again(spec))
        return files
    spec = _meant(spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _directory_files(spec, path)
    if path.suffix == ".gguf":
        return _loose_gguf(spec, path, report)
    if _HUB_ID.fullmatch(spec):
        return _hub_files(spec, allow_download, report)
    close = difflib.get_close_matches(spec, CATALOG, n=1)
    suggestion = f"did you mean {close[0]}?" if close else f"aliases: {', '.join(CATALOG)}"
    raise ModelError(
        f"there is no model {spec!r}: neither an alias, a directory, a .gguf file nor a Hugging Face id",
        suggestion,
    )


def find_side_files(spec: str) -> Path | None:
    """Directory of configuration, tokenizer and template; ``None`` while a run would fetch or make it.

    Nothing is fetched, converted or loaded, and no digest of a directory's weights is taken.

    Raises:
        ModelError: There is no such model, or its files are not complete.
    """
    found = _side_files(spec)
    if found is not None:
        check_side_files(found, _again(spec))
    return found


def _side_files(spec: str) -> Path | None:
    if spec in CATALOG:
        return installed_directory(CATALOG[spec]) if is_installed(CATALOG[spec]) else None
    spec = _meant(spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        _check_directory(path)
        _safetensors(path)
        return path
    if path.suffix == ".gguf" and path.is_file():
        directory = _converted(path)
        return directory if (directory / MANIFEST).exists() else None
    if _HUB_ID.fullmatch(spec) and path.suffix != ".gguf":
        from specbatch.models.hub import find_snapshot  # noqa: PLC0415 - slow to import

        present = find_snapshot(spec)
        return present if present is not None and (present / TOKENIZER).is_file() else None
    # Says what is wrong with the name or the file.
    return resolve_model(spec, allow_download=False, report=_silent).directory


def bytes_on_disk(spec: str) -> int:
    """Size of a model's weights, as far as they are on this machine.

    Raises:
        ModelError: There is no such model, or its files are not complete.
    """
    spec = _meant(spec)
    path, directory = Path(spec).expanduser(), find_side_files(spec)
    if spec not in CATALOG and path.is_file():
        weights = [path]
    elif directory is None:
        weights = []
    else:
        kept = Path(CATALOG[spec].member).name if spec in CATALOG else "*.safetensors"
        weights = list(directory.glob(kept))
    return sum(file.stat().st_size for file in weights if file.is_file())


def _silent(_line: str) -> None:
    """Nothing is fetched, so there is nothing to report."""


def refresh_model(spec: str, *, force: bool = False, report: Callable[[str], None]) -> ModelFiles:
    """Like ``resolve_model``, and of a Hugging Face id the newest revision.

    Args:
        spec: As for :func:`resolve_model`.
        force: Fetch or convert again what is there.
        report: Receives progress, one line each.

    Raises:
        ModelError: There is no such model, or it cannot be fetched or used.
    """
    spec = _meant(spec)
    path = Path(spec).expanduser()
    if spec in CATALOG and force:
        pull(CATALOG[spec], report, force=True)
    elif path.suffix == ".gguf" and path.is_file() and force and _converted(path).exists():
        shutil.rmtree(_converted(path))
    elif spec not in CATALOG and not path.exists() and path.suffix != ".gguf" and _HUB_ID.fullmatch(spec):
        return _fetch_hub_files(spec, report, force)
    return resolve_model(spec, report=report)


def _meant(spec: str) -> str:
    """The ``.gguf`` file in a directory that holds one and no safetensors; everything else as it is.

    Raises:
        ModelError: It holds several.
    """
    directory = Path(spec).expanduser()
    if spec in CATALOG or not directory.is_dir() or any(directory.glob("*.safetensors")):
        return spec
    found = sorted(directory.glob("*.gguf"))
    if (directory / _INDEX).exists() or not found:
        return spec
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ModelError(f"{directory} holds several .gguf files: {names}", f"name one: --model {found[0]}")
    return str(found[0])


def _again(spec: str) -> str:
    """How to get a model's files once more."""
    if Path(spec).expanduser().is_dir():
        return "write or copy the model again"
    return f"run: specbatch model pull {spec} --force"


def _gguf_files(name: str, weights: Path, directory: Path) -> ModelFiles:
    """A GGUF file whose side files have been converted into ``directory``."""
    check_side_files(directory, _again(name))
    manifest = read_json(directory / MANIFEST)
    return ModelFiles(
        name=name,
        directory=directory,
        weights=(weights,),
        format="gguf",
        digest=weights_digest([weights]),
        side_digest=side_digest(directory),
        quantization=str(manifest.get("quantization")),
    )


def _loose_gguf(name: str, path: Path, report: Callable[[str], None]) -> ModelFiles:
    """A GGUF file of the user's; its side files are converted once, into the cache."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    directory = _converted(path)
    if not (directory / MANIFEST).exists():
        # Heavy (torch, transformers), and needed once per file.
        from specbatch.models.gguf_convert import write_side_files  # noqa: PLC0415

        report(f"converting configuration and tokenizer of {path.name}")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=directory.parent) as work:
            staged = Path(work) / "model"
            write_side_files(path, staged)
            try:
                staged.rename(directory)
            except OSError:
                # Another process was faster, with the same files.
                if not (directory / MANIFEST).exists():
                    raise
    return _gguf_files(name, path, directory)


def _converted(path: Path) -> Path:
    """Where the side files of a loose GGUF file are, once they are made."""
    return cache_root() / "gguf" / f"{weights_digest([path])[:32]}-v{CONVERSION}"


def _directory_files(name: str, directory: Path) -> ModelFiles:
    """A Hugging Face directory: configuration, tokenizer and safetensors."""
    _check_directory(directory)
    check_side_files(directory, _again(name))
    weights = _safetensors(directory)
    return ModelFiles(
        name=name,
        directory=directory,
        weights=weights,
        format="safetensors",
        digest=weights_digest(weights),
        side_digest=side_digest(directory),
        quantization="none",
    )


def _check_directory(directory: Path) -> None:
    for needed, hint in (
        (CONFIG, "a model directory holds config.json, tokenizer.json and *.safetensors"),
        (TOKENIZER, "save it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"),
    ):
        if not (directory / needed).is_file():
            raise ModelError(f"{directory} has no {needed}", hint)


def _safetensors(directory: Path) -> tuple[Path, ...]:
    """Weight files in name order: those of the index, or the only one there is."""
    index = directory / _INDEX
    if index.exists():
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ModelError(f"{index} has no weight_map")
        found = tuple(directory / str(part) for part in sorted(set(parts.values())))
    else:
        whole = directory / "model.safetensors"
        found = (whole,) if whole.exists() else tuple(sorted(directory.glob("*.safetensors")))
        if len(found) > 1:
            raise ModelError(f"{directory} holds several *.safetensors and no {_INDEX}")
    missing = [path.name for path in found if not path.is_file()]
    if missing or not found:
        raise ModelError(
            f"{directory} has no {', '.join(missing) or '*.safetensors'}",
            "the engine reads safetensors or a .gguf file; fetch the missing files again",
        )
    return found


def _hub_files(spec: str, allow_download: bool, report: Callable[[str], None]) -> ModelFiles:
    """A snapshot of the Hugging Face cache.

    What is there is used as it is, so that a nightly job does not change with the repository;
    ``specbatch model pull`` asks for the newest revision.
    """
    from specbatch.models.hub import find_snapshot  # noqa: PLC0415 - slow to import

    present = find_snapshot(spec)
    if present is not None:
        try:
            return _directory_files(spec, present)
        except ModelError:
            # Another tool fetched a part of the repository.
            if not allow_download:
                raise
    if not allow_download:
        raise ModelError(f"{spec} is not on this machine", f"run: specbatch model pull {spec}")
    return _fetch_hub_files(spec, report)


def _fetch_hub_files(spec: str, report: Callable[[str], None], force: bool = False) -> ModelFiles:
    from specbatch.models.hub import fetch_snapshot  # noqa: PLC0415 - slow to import

    report(f"fetching {spec} from the Hugging Face Hub")
    return _directory_files(spec, fetch_snapshot(spec, force))
