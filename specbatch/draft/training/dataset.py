"""The documents of a folder of shards, divided into those for training and those for judging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbatch.draft.training.batch import Example
from specbatch.draft.training.documents import Mark
from specbatch.draft.training.shards import ShardFolder
from specbatch.errors import InputError, MismatchError

_HELD_OUT_EVERY = 50
"""One document of so many is never trained on. Duplicates were left out when the data were collected."""

_SHORTEST_ANSWER = 3


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training data in memory maps.

    Attributes:
        shards: How many each folder held when it was opened; later ones do not take part.
        train: Documents to learn from.
        held_out: Documents to judge by.
        greedy: Those of ``held_out`` whose answers are the target's most likely tokens.
    """

    shards: tuple[int, ...]
    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    greedy: tuple[Example, ...]

    @property
    def train_tokens(self) -> int:
        """Tokens to learn from."""
        return sum(map(len, self.train))


def open_dataset(folders: Sequence[ShardFolder], shards: Sequence[int] | None = None) -> Dataset:
    """Open one or more folders of the same target.

    Args:
        folders: The shards.
        shards: Take so many of each, the first ones; ``None``: all that are there.

    Raises:
        InputError: There are fewer, or too few documents to train and judge.
        MismatchError: The folders hold text of different targets.
    """
    taken = [len(folder) for folder in folders] if shards is None else list(shards)
    if len(taken) != len(folders):
        raise InputError(
            f"training began with {len(taken)} folders of data, there are {len(folders)}",
            "give --data and --also as at the beginning",
        )
    train: list[Example] = []
    held_out: list[Example] = []
    greedy: list[Example] = []
    for folder, count in zip(folders, taken, strict=True):
        _check(folder, folders[0], count)
        for index, example in _examples(folder, count):
            if index % _HELD_OUT_EVERY:
                train.append(example)
                continue
            held_out.append(example)
            if _is_greedy(folder, index):
                greedy.append(example)
    if not train or not greedy:
        raise InputError(
            f"{folders[0].path} holds too few documents to train and judge a head", "collect more"
        )
    return Dataset(tuple(taken), tuple(train), tuple(held_out), tuple(greedy))


def _check(folder: ShardFolder, first: ShardFolder, count: int) -> None:
    there = len(folder)
    if count > there:
        raise InputError(f"{folder.path} holds {there} shards, {count} are needed", "was it cut down?")
    for name in ("target_digest", "captured"):
        if folder.recipe.get(name) != first.recipe.get(name):
            raise MismatchError(
                f"{folder.path} and {first.path} hold text of different models: {name} differs",
                "collect both with the model the head is for",
            )


def _examples(folder: ShardFolder, shards: int) -> Iterator[tuple[int, Example]]:
    """Number and content of every document with an answer worth the name."""
    for number in range(shards):
        shard = folder.read(number)
        bounds = shard.offsets.tolist()
        for index, start, end in zip(shard.indices.tolist(), bounds, bounds[1:], strict=False):
            span = slice(start, end)
            example = Example(shard.tokens[span], shard.marks[span], shard.states[span])
            if len(example) - example.answer_start >= _SHORTEST_ANSWER:
                yield index, example


def _is_greedy(folder: ShardFolder, index: int) -> bool:
    """Whether a document's answer is the target's most likely one; past rows count as such."""
    answer = folder.recipe.get("answer")
    temperatures = answer.get("temperatures") if isinstance(answer, dict) else None
    return temperatures is None or temperatures[index % len(temperatures)] == 0


def frequent_tokens(examples: Sequence[Example], size: int, always: frozenset[int]) -> Tensor:
    """The draft vocabulary: the most frequent answer tokens, ascending.

    Args:
        examples: Where they are counted.
        size: How many; the lowest ids fill up when fewer occur.
        always: Tokens that belong to it however rare they are, such as ends of text.

    Returns:
        int64 ``[size]``.
    """
    answers = [example.tokens[example.marks == Mark.ANSWER] for example in examples]
    counts = np.bincount(np.concatenate(answers), minlength=size).astype(np.int64)
    counts[[token for token in always if token < len(counts)]] = len(counts) + counts.sum()
    order = np.lexsort((np.arange(len(counts)), -counts))
    return torch.from_numpy(np.sort(order[:size]))


class BatchPlan:
    """Batches addressed by step: shuffled anew every epoch, the same for the same seed.

    Args:
        lengths: Tokens of each document.
        tokens: A batch ends with the document that reaches this many.
        seed: Of the shuffling.
    """

    def __init__(self, lengths: Sequence[int], tokens: int, seed: int) -> None:
        self._lengths, self._tokens, self._seed = np.array(lengths), tokens, seed
        self._epochs: list[list[list[int]]] = []
        self._first: list[int] = [0]

    def documents(self, step: int) -> list[int]:
        """Which documents make up a step's batch."""
        while step >= self._first[-1]:
            self._epochs.append(self._cut(len(self._epochs)))
            self._first.append(self._first[-1] + len(self._epochs[-1]))
        epoch = int(np.searchsorted(self._first, step, side="right")) - 1
        return self._epochs[epoch][step - self._first[epoch]]

    def _cut(self, epoch: int) -> list[list[int]]:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._lengths))
        whole: list[list[int]] = [[]]
        size = 0
        for document in order.tolist():
            if size >= self._tokens:
                whole.append([])
                size = 0
            whole[-1].append(document)
            size += int(self._lengths[document])
        return whole
