"""The target at work on many documents at once, its hidden states kept as it goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from specbatch_kernels.cpu import (
    AttentionKeys,
    DecoderBatch,
    DecoderOutputs,
    KvCache,
    PackedDecoder,
    Placement,
    ThreadPool,
    decoder_pass,
)
from specbatch_kernels.cpu.sampling import SamplingRow, sample
from torch import Tensor

from specbatch.cache import KVStore
from specbatch.draft.training.documents import Document
from specbatch.errors import EngineError
from specbatch.rows import SamplingParams

_PAGE = 16
_CHUNK = 128
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Scribe:
    """A target that reports hidden states.

    Attributes:
        decoder: Its ``captured`` places are what is kept of every token.
        pool: Threads.
    """

    decoder: PackedDecoder
    pool: ThreadPool


@dataclass(slots=True, eq=False)
class _Seat:
    """A place for one document in flight.

    Attributes:
        states: float16 ``[capacity, places, hidden]``, filled as far as the document is computed.
    """

    number: int
    document: Document
    states: NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Finished:
    """A document that has ended.

    Attributes:
        states: float16 ``[tokens, places, hidden]``; empty for one that is of no use.
    """

    document: Document
    states: NDArray[np.float16]


class Desk:
    """Seats for documents in flight. A document's content does not depend on its neighbours.

    Args:
        scribe: The target.
        seats: Documents in flight.
        capacity: Tokens of the longest document.
    """

    def __init__(self, scribe: Scribe, seats: int, capacity: int) -> None:
        self._scribe = scribe
        self._pages = -(-capacity // _PAGE)
        self._capacity = self._pages * _PAGE
        parts = scribe.decoder.parts
        shape = (len(scribe.decoder.layers), seats * self._pages, parts.num_kv_heads, scribe.decoder.head_dim)
        self._store = KVStore.zeros(shape, _PAGE, torch.float32, torch.device("cpu"))
        self._table = torch.arange(seats * self._pages, dtype=torch.int32).view(seats, self._pages)
        self._free = list(range(seats - 1, -1, -1))
        self._seats: list[_Seat] = []

    def step(self, arrivals: Iterator[Document]) -> tuple[list[Finished], int]:
        """Seat new documents while there is room, and advance all by one pass.

        Returns:
            The documents that ended, and how many tokens the pass computed: none when nothing is left to do.
        """
        while self._free and (document := next(arrivals, None)) is not None:
            shape = (self._capacity, len(self._scribe.decoder.parts.captured), self._scribe.decoder.hidden)
            self._seats.append(_Seat(self._free.pop(), document, np.empty(shape, dtype=np.float16)))
        if not self._seats:
            return [], 0
        counts = [min(_CHUNK, seat.document.pending) for seat in self._seats]
        speakers = [
            (i, params)
            for i, (seat, count) in enumerate(zip(self._seats, counts, strict=True))
            if (params := seat.document.params) is not None and count == seat.document.pending
        ]
        logits = self._compute(counts, [i for i, _ in speakers])
        documents = [self._seats[i].document for i, _ in speakers]
        chosen = self._choose(logits, documents, [params for _, params in speakers])
        for document, token in zip(documents, chosen, strict=True):
            document.take(token)
        return self._leave(), sum(counts)

    def _compute(self, counts: Sequence[int], speakers: Sequence[int]) -> Tensor:
        """One pass over the next ``counts`` tokens of every seat; logits of the speakers, ``[S, vocab]``."""
        spans = [
            np.arange(s.document.computed, s.document.computed + c)
            for s, c in zip(self._seats, counts, strict=True)
        ]
        positions = torch.from_numpy(np.concatenate(spans))
        rows = torch.repeat_interleave(
            torch.tensor([s.number for s in self._seats], dtype=torch.int32), torch.tensor(counts)
        )
        tokens = [
            t
            for s, span in zip(self._seats, spans, strict=True)
            for t in s.document.tokens[span[0] : span[-1] + 1]
        ]
        ends = np.cumsum(counts)
        none = torch.zeros(len(tokens) + 1, dtype=torch.int32)
        keys = AttentionKeys(self._table, rows, (positions + 1).to(torch.int32), none, none[:0])
        slots = rows.to(torch.int64) * self._capacity + positions
        wanted = torch.tensor([int(ends[i]) - 1 for i in speakers], dtype=torch.int64)
        batch = DecoderBatch(torch.tensor(tokens), Placement(positions, slots), keys, wanted)
        decoder = self._scribe.decoder
        logits = torch.empty((len(speakers), decoder.parts.head.rows))
        captured = torch.empty((len(decoder.parts.captured), len(tokens), decoder.hidden))
        cache = KvCache(self._store.keys, self._store.values, _PAGE)
        decoder_pass(decoder, batch, cache, DecoderOutputs(logits, captured), self._scribe.pool)
        states = captured.clamp_(-_LARGEST, _LARGEST).to(torch.float16).transpose(0, 1).numpy()
        for seat, span, end in zip(self._seats, spans, ends, strict=True):
            seat.states[span] = states[end - len(span) : end]
            seat.document.computed += len(span)
        return logits

    def _choose(
        self, logits: Tensor, documents: Sequence[Document], params: Sequence[SamplingParams]
    ) -> list[int]:
        """The next token of every speaker."""
        if not documents:
            return []
        rows = [
            SamplingRow(
                place,
                temperature=each.temperature,
                top_p=each.top_p,
                min_p=each.min_p,
                top_k=each.top_k,
                state=document.stream.state(len(document.tokens)),
            )
            for place, (document, each) in enumerate(zip(documents, params, strict=True))
        ]
        chosen = sample(logits, rows, self._scribe.pool)
        if min(chosen) < 0:
            raise EngineError("the output of the model is not a number", "check its weights")
        return chosen

    def _leave(self) -> list[Finished]:
        """Take out the documents that ended."""
        ended = [seat for seat in self._seats if seat.document.ended]
        self._seats = [seat for seat in self._seats if not seat.document.ended]
        self._free.extend(seat.number for seat in reversed(ended))
        return [Finished(seat.document, seat.states[: seat.document.computed].copy()) for seat in ended]
