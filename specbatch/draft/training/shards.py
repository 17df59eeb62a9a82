"""Training data on disk: shards of whole documents, memory-mapped when they are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbatch.draft.training.documents import Fate, Mark
from specbatch.draft.training.writer import Finished
from specbatch.errors import InputError, MismatchError, StorageError
from specbatch.table.atomic import TEMPORARY_SUFFIX, write_text

RECIPE = "recipe.json"
"""What the data are made of; shards of different recipes do not mix."""

_FACTS = "facts.json"


@dataclass(frozen=True, slots=True)
class Shard:
    """Documents one after another.

    Attributes:
        tokens: int32 ``[T]``.
        marks: uint8 ``[T]``, :class:`specbatch.draft.training.documents.Mark`.
        offsets: int64 ``[D + 1]``, bounds of the documents.
        indices: int64 ``[D]``, numbers of the documents.
        states: float16 ``[T, places, hidden]``.
    """

    tokens: NDArray[np.int32]
    marks: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    indices: NDArray[np.int64]
    states: NDArray[np.float16]


class ShardFolder:
    """A folder of shards with one recipe.

    Args:
        path: Made when it does not exist.
        recipe: JSON-ready; must equal that of the shards that are there already. ``None``: any.

    Raises:
        MismatchError: The folder holds data of another recipe.
        InputError: The folder holds no data, and no recipe was given.
    """

    def __init__(self, path: Path, recipe: Mapping[str, object] | None) -> None:
        self.path = path
        there = path / RECIPE
        if recipe is None and not there.is_file():
            raise InputError(f"{path} holds no training data", "collect some first")
        if there.is_file():
            found = json.loads(there.read_text(encoding="utf-8"))
            wanted = found if recipe is None else json.loads(json.dumps(recipe))
            different = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
            if different:
                raise MismatchError(
                    f"{path} holds training data of another recipe: {', '.join(different)} differ",
                    "give another directory, or the same settings",
                )
            self.recipe: dict[str, object] = found
        else:
            path.mkdir(parents=True, exist_ok=True)
            write_text(there, json.dumps(recipe, indent=2) + "\n")
            self.recipe = dict(recipe or {})
        for leftover in path.glob(f"*{TEMPORARY_SUFFIX}"):
            shutil.rmtree(leftover)

    def __len__(self) -> int:
        """Complete shards, counted from the first."""
        count = 0
        while (self._shard(count) / _FACTS).is_file():
            count += 1
        return count

    def facts(self, shards: int | None = None) -> dict[str, int]:
        """Documents, tokens, answer tokens, and documents left out by reason, in all or the first shards."""
        total: dict[str, int] = {}
        for number in range(len(self) if shards is None else shards):
            facts = json.loads((self._shard(number) / _FACTS).read_text(encoding="utf-8"))
            for name, count in facts.items():
                total[name] = total.get(name, 0) + count
        return total

    def read(self, number: int) -> Shard:
        """One shard; its states stay on disk until they are touched."""
        folder = self._shard(number)
        arrays = {name: np.load(folder / f"{name}.npy") for name in ("tokens", "marks", "offsets", "indices")}
        return Shard(**arrays, states=np.load(folder / "states.npy", mmap_mode="r"))

    def messages(self) -> Iterator[bytes]:
        """:func:`message_digest` of every document that is there."""
        for number in range(len(self)):
            shard = self.read(number)
            for start, end in zip(shard.offsets[:-1], shard.offsets[1:], strict=True):
                yield message_digest(shard.tokens[start:end], shard.marks[start:end])

    def write(self, number: int, finished: Sequence[Finished]) -> None:
        """Write a shard; it appears in full or not at all.

        Raises:
            StorageError: The disk refused.
        """
        kept = [entry for entry in finished if entry.document.fate is Fate.KEPT]
        arrays = _arrays(kept) if kept else {}
        facts = {"documents": len(kept), "tokens": 0, "answer_tokens": 0}
        if kept:
            facts["tokens"] = len(arrays["tokens"])
            facts["answer_tokens"] = int((arrays["marks"] == Mark.ANSWER).sum())
        for entry in finished:
            if entry.document.fate is not Fate.KEPT:
                facts[entry.document.fate] = facts.get(entry.document.fate, 0) + 1
        folder = self._shard(number)
        unfinished = folder.with_name(folder.name + TEMPORARY_SUFFIX)
        try:
            unfinished.mkdir()
            for name, array in arrays.items():
                np.save(unfinished / f"{name}.npy", array)
            (unfinished / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
            os.sync()
            unfinished.rename(folder)
        except OSError as error:
            raise StorageError(
                f"{folder}: cannot be written: {error.strerror or error}", "check space and permissions"
            ) from error

    def _shard(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}"


def message_digest(tokens: NDArray[np.int32], marks: NDArray[np.uint8]) -> bytes:
    """Names a document by what the user said; a document without such words by all of it."""
    said = tokens[marks == Mark.USER]
    words = said if len(said) else tokens
    return blake2b(words.astype("<i4").tobytes(), digest_size=16).digest()


def _arrays(kept: Sequence[Finished]) -> dict[str, NDArray[np.generic]]:
    lengths = [len(entry.document.tokens) for entry in kept]
    return {
        "tokens": np.concatenate([np.array(entry.document.tokens, dtype=np.int32) for entry in kept]),
        "marks": np.concatenate([np.array(entry.document.marks, dtype=np.uint8) for entry in kept]),
        "offsets": np.cumsum([0, *lengths], dtype=np.int64),
        "indices": np.array([entry.document.index for entry in kept], dtype=np.int64),
        "states": np.concatenate([entry.states for entry in kept]),
    }
