"""What a trained head is made of, as JSON beside it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from specbatch import __version__
from specbatch.draft.training.dataset import Dataset
from specbatch.draft.training.evaluate import Evaluation
from specbatch.draft.training.session import Options, Record
from specbatch.draft.training.shards import ShardFolder
from specbatch.draft.training.trainer import Hyper
from specbatch.models.files import ModelFiles
from specbatch.table.atomic import write_text

SCHEMA_VERSION = 1


def manifest_path(out: Path) -> Path:
    """The manifest of a head's file."""
    return out.with_suffix(".json")


def write_manifest(options: Options, sections: Mapping[str, object]) -> None:
    """Write the manifest of a finished head."""
    head = options.out.read_bytes()
    facts = {
        "schema_version": SCHEMA_VERSION,
        "head": {
            "file": options.out.name,
            "bytes": len(head),
            "sha256": hashlib.sha256(head).hexdigest(),
            "quantisation": options.quantise,
        },
        **sections,
        **_beginning(options.start),
        "versions": {
            "specbatch": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {"architecture": platform.machine(), "threads": options.threads},
    }
    write_text(manifest_path(options.out), json.dumps(facts, indent=2) + "\n")


def _beginning(start: Path | None) -> dict[str, object]:
    """The head that training began with, and everything that is known of how that one was made."""
    if start is None:
        return {}
    known = manifest_path(start)
    return {
        "begun_with": {
            "sha256": hashlib.sha256(start.read_bytes()).hexdigest(),
            "manifest": json.loads(known.read_text(encoding="utf-8")) if known.is_file() else None,
        }
    }


def training_sections(hyper: Hyper, record: Record, evaluation: Evaluation) -> dict[str, object]:
    """How it was trained and what came of it."""
    return {
        "training": {
            **asdict(hyper),
            "plans": record.plans,
            "tokens_seen": record.tokens,
            "seconds": round(record.seconds, 1),
            "losses": record.losses,
            "evaluations": record.evaluations,
        },
        "evaluation": {
            "what": "chains of greedy drafts at every place of held-out greedy answers, weights as written",
            "depth": len(evaluation.acceptance),
            **evaluation.as_dict(),
        },
    }


def data_sections(
    files: ModelFiles, folders: Sequence[ShardFolder], data: Dataset, command: Sequence[str]
) -> dict[str, object]:
    """The command and what it worked on."""
    return {
        "command": shlex.join(["specbatch", *command]),
        "target": {"name": files.name, "digest": files.digest, "quantization": files.quantization},
        "data": {
            "folders": [
                {"recipe": folder.recipe, "shards": shards, **folder.facts(shards)}
                for folder, shards in zip(folders, data.shards, strict=True)
            ],
            "train_documents": len(data.train),
            "train_tokens": data.train_tokens,
            "held_out_documents": len(data.held_out),
        },
    }
