"""The Hugging Face Hub and its cache. ``HF_HOME`` and ``HF_HUB_OFFLINE`` are honoured by the client."""

from __future__ import annotations

import sys
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from specbatch.errors import ModelError

_WANTED = ("*.json", "*.jinja", "*.safetensors")
_UNWANTED = ("*/*", "consolidated*")  # other formats in folders; Mistral's second copy of the weights


def find_snapshot(spec: str) -> Path | None:
    """Directory of a snapshot in the cache, possibly incomplete; ``None`` when there is none."""
    name, _, revision = spec.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def fetch_snapshot(spec: str, force: bool = False) -> Path:
    """Bring the cache up to date with the repository, ``name`` or ``name@revision``.

    Args:
        spec: The repository.
        force: Fetch files again that are there.

    Raises:
        ModelError: There is no such repository or revision, it needs a login, or the Hub cannot be
            reached.
    """
    name, _, revision = spec.partition("@")
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_UNWANTED),
                force_download=force,
            )
        )
    except GatedRepoError as error:
        raise ModelError(f"{name} needs its licence accepted and a login", "run: hf auth login") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the Hugging Face Hub") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"there is no {name!r} on the Hugging Face Hub, or it is private",
            "check the name, or log in with: hf auth login",
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(f"{spec} is not on this machine and HF_HUB_OFFLINE is set") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{spec} cannot be fetched from the Hugging Face Hub: {_first_line(error)}",
            "check the network, or give --model a directory or a .gguf file",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
