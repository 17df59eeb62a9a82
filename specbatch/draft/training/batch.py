"""Documents packed one after another, and the drafted chains that start in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbatch.draft.training.documents import Mark


@dataclass(frozen=True, slots=True)
class Example:
    """One document as it is on disk; see :class:`specbatch.draft.training.shards.Shard`."""

    tokens: NDArray[np.int32]
    marks: NDArray[np.uint8]
    states: NDArray[np.float16]

    def __len__(self) -> int:
        """Tokens."""
        return len(self.tokens)

    @property
    def answer_start(self) -> int:
        """Position of the first answer token; the length when there is none."""
        found = np.flatnonzero(self.marks == Mark.ANSWER)
        return int(found[0]) if len(found) else len(self)


@dataclass(frozen=True, slots=True)
class Batch:
    """T entries of D documents, one after another (ragged, no padding).

    Attributes:
        tokens: int64 ``[T]``.
        positions: int64 ``[T]``, position in the document.
        features: float32 ``[T, F, hidden]``, of the token before; zeros at position 0.
        final: float32 ``[T, hidden]``, the target's state before its final norm, from which it chose
            the token that the entry predicts.
        weights: float32 ``[T]``, how much the entry's prediction counts; 0 where the document ends
            or the template goes on.
        documents: Bounds of the documents, ``D + 1`` integers.
        roots: Entry of each document at which its first chain starts: the first answer token.
    """

    tokens: Tensor
    positions: Tensor
    features: Tensor
    final: Tensor
    weights: Tensor
    documents: tuple[int, ...]
    roots: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.documents[-1]


def pack(examples: Sequence[Example], user_weight: float) -> Batch:
    """Lay documents out one after another.

    Args:
        examples: At least one.
        user_weight: Weight of predictions of the user's words; answers count 1.
    """
    lengths = [len(example) for example in examples]
    bounds = tuple(int(bound) for bound in np.cumsum([0, *lengths]))
    total, (places, hidden) = bounds[-1], examples[0].states.shape[1:]
    features = np.zeros((total, places - 1, hidden), dtype=np.float32)
    final = np.empty((total, hidden), dtype=np.float32)
    weights = np.zeros(total, dtype=np.float32)
    weight_of = np.zeros(len(Mark), dtype=np.float32)
    weight_of[Mark.USER], weight_of[Mark.ANSWER] = user_weight, 1.0
    for start, example in zip(bounds, examples, strict=False):
        end = start + len(example)
        features[start + 1 : end] = example.states[:-1, :-1]
        final[start:end] = example.states[:, -1]
        weights[start : end - 1] = weight_of[example.marks[1:]]
    return Batch(
        tokens=torch.from_numpy(np.concatenate([example.tokens for example in examples]).astype(np.int64)),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        features=torch.from_numpy(features),
        final=torch.from_numpy(final),
        weights=torch.from_numpy(weights),
        documents=bounds,
        roots=tuple(
            start + min(example.answer_start, len(example))
            for start, example in zip(bounds, examples, strict=False)
        ),
    )


def chain_lengths(batch: Batch, step: int) -> list[int]:
    """How many chains of each document reach feedback step ``step``.

    A chain starts at every entry from the document's root on; at step j it has come to the entry j
    places further, whose prediction must lie inside the document.
    """
    ends = batch.documents[1:]
    return [max(0, end - 1 - step - root) for root, end in zip(batch.roots, ends, strict=True)]
