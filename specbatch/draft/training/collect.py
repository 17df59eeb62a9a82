"""Collecting training data: documents in, shards out, in the order of their numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from specbatch.draft.training.documents import Document, Fate
from specbatch.draft.training.shards import ShardFolder, message_digest
from specbatch.draft.training.writer import Desk, Finished, Scribe

DOCUMENTS_PER_SHARD = 128


@dataclass(frozen=True, slots=True)
class Collection:
    """How much to collect.

    Attributes:
        tokens: Enough is what reaches this many.
        seats: Documents in flight per scribe.
        capacity: Tokens of the longest document.
    """

    tokens: int
    seats: int
    capacity: int


def collect(
    scribes: Sequence[Scribe],
    folder: ShardFolder,
    source: Callable[[int], Document | None],
    wanted: Collection,
    tick: Callable[[int], None],
) -> None:
    """Fill a folder with shards until there are enough tokens or no more documents; goes on where it was.

    Args:
        scribes: Targets that write side by side. Which of them writes a document changes nothing of it.
        folder: Where the shards are.
        source: The document of a number; ``None`` after the last one.
        wanted: How much.
        tick: Called after every pass with the tokens collected so far, unwritten ones included.
    """
    done = len(folder)
    tokens = folder.facts().get("tokens", 0)
    seen = set(folder.messages())
    documents = _Documents(source, done * DOCUMENTS_PER_SHARD)
    waiting: dict[int, Finished] = {}
    in_flight = 0
    desks = [Desk(scribe, wanted.seats, wanted.capacity) for scribe in scribes]
    with ThreadPoolExecutor(len(desks), "scribe") as workers:
        steps = {workers.submit(desk.step, documents): desk for desk in desks}
        while steps and tokens < wanted.tokens:
            for step in wait(steps, return_when=FIRST_COMPLETED).done:
                desk = steps.pop(step)
                finished, computed = step.result()
                if computed:
                    steps[workers.submit(desk.step, documents)] = desk
                waiting.update((entry.document.index, entry) for entry in finished)
                in_flight += computed
            tick(tokens + in_flight)
            while shard := _take_shard(waiting, done, complete=not steps):
                _mark_duplicates(shard, seen)
                folder.write(done, shard)
                done += 1
                in_flight -= sum(entry.document.computed for entry in shard)
                tokens = folder.facts()["tokens"]


class _Documents(Iterator[Document]):
    """The documents of a source from a number on; several threads may take from it."""

    def __init__(self, source: Callable[[int], Document | None], first: int) -> None:
        self._source, self._next = source, first
        self._lock = threading.Lock()

    def __next__(self) -> Document:
        with self._lock:
            document = self._source(self._next)
            if document is None:
                raise StopIteration
            self._next += 1
            return document


def _take_shard(waiting: dict[int, Finished], number: int, complete: bool) -> list[Finished]:
    """The documents of a shard once all have ended; the last shard may be short."""
    indices = range(number * DOCUMENTS_PER_SHARD, (number + 1) * DOCUMENTS_PER_SHARD)
    there = [index for index in indices if index in waiting]
    if len(there) < DOCUMENTS_PER_SHARD and not complete:
        return []
    return [waiting.pop(index) for index in there]


def _mark_duplicates(shard: list[Finished], seen: set[bytes]) -> None:
    """Of documents in which the user says the same, the first one stays."""
    for entry in shard:
        document = entry.document
        if document.fate is not Fate.KEPT:
            continue
        name = message_digest(
            np.array(document.tokens, dtype=np.int32), np.array(document.marks, dtype=np.uint8)
        )
        if name in seen:
            document.fate = Fate.DUPLICATE
        seen.add(name)
