"""What in a run directory was written by runs, and what belongs to somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from specbatch.table.atomic import TEMPORARY_SUFFIX
from specbatch.table.decisions import FOLDER
from specbatch.table.lock import LOCK
from specbatch.table.reserve import RESERVE

MADE = ("results.parquet", "summary.json", "decisions.parquet", "error.txt", "run.json")
"""Files of a run, those first that readers look at."""

FOLDERS = MappingProxyType({"parts": "part-*.parquet", FOLDER: "attempt-*.parquet"})
"""Folder of a run directory → the files that runs write into it."""

REMAINS = frozenset({*FOLDERS, RESERVE, f".{RESERVE}{TEMPORARY_SUFFIX}", ".run.json.tmp", LOCK})
"""What may be there without a manifest: the remains of a run that was being cleared or begun."""


def strangers(run: Path) -> Iterator[Path]:
    """Whatever no run wrote, in a run directory and in its folders."""
    for item in sorted(run.iterdir()):
        if item.name in FOLDERS and item.is_dir():
            yield from strangers_among_parts(item)
        elif item.name in FOLDERS or not _is_ours(item.name):
            yield item


def strangers_among_parts(folder: Path) -> list[Path]:
    """Whatever no run wrote in one of its folders."""
    pattern = FOLDERS[folder.name]
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() or not (_is_staged(path.name) or path.match(pattern))
    ]


def _is_ours(name: str) -> bool:
    return name in MADE or name in REMAINS or _is_staged(name)


def _is_staged(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)
