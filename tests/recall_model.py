"""A real model that is asked once per context and remembered: many short continuations in seconds."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add

import numpy as np
import torch
from torch import Tensor

from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.engine.executor import Executor
from specbatch.randomness import gumbel_of_few
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.sampling import Draw, distribution
from specbatch.step import PassOutput, Step, build_step
from specbatch.tree import TokenTree
from specbatch.work import Work
from tests.engine.table_model import TableExecutor

CHECKED = 16
"""One in how many choices is compared with the real executor's, which reads whole rows of logits."""


@dataclass
class Recall:
    """Logits of the real model behind each context that was ever asked for."""

    executor: Executor
    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)
    targets: dict[tuple[int, SamplingParams], tuple[list[int], list[float]]] = field(default_factory=dict)

    def place(self, context: tuple[int, ...]) -> int:
        if context not in self.known:
            self.known[context] = len(self.logits)
            self.logits.append(self._compute(context))
        return self.known[context]

    def behind(self, context: tuple[int, ...]) -> Tensor:
        """float32 ``[vocab]``."""
        return self.logits[self.place(context)]

    def target(self, place: int, params: SamplingParams) -> tuple[list[int], list[float]]:
        """Tokens that survive the filters, and their log weights."""
        if (place, params) not in self.targets:
            target = distribution(self.logits[place].double(), params)
            self.targets[place, params] = target.tokens.tolist(), target.log_weights.tolist()
        return self.targets[place, params]

    def _compute(self, context: tuple[int, ...]) -> Tensor:
        store = self.executor.store
        pages = list(range(1, 2 + len(context) // store.page_size))
        row = Row(Prompt(0, "0" * 32, None, "standard", context, SamplingParams()), pages=pages)
        step = build_step([Work(row, len(context))], store.page_size)
        return self.executor.forward(step).logits[0].clone()


@dataclass
class RecallExecutor(TableExecutor):
    """An executor over :class:`Recall`; its "logits" are the places of the real ones until one is chosen."""

    recall: Recall = field(kw_only=True)
    calls: int = 0

    def forward(self, step: Step) -> PassOutput:
        self.slots[step.slots] = step.tokens
        places = [[self.recall.place(context)] for context in self._contexts(step)]
        return PassOutput(torch.tensor(places, dtype=torch.float32))

    def _contexts(self, step: Step) -> Iterator[tuple[int, ...]]:
        """What each wanted token reads through the page table, itself included."""
        table, tokens = step.page_table.numpy() * self.page_size, self.slots.numpy()
        lengths, bounds = step.context_len.tolist(), step.extra_offsets.tolist()
        extra = step.extra_positions.numpy()
        for token in step.wanted.tolist():
            pages = table[bisect(step.row_starts, token) - 1]
            own = extra[bounds[token] : bounds[token + 1]]
            places = np.concatenate([np.arange(lengths[token]), own])
            yield tuple(tokens[pages[places // self.page_size] + places % self.page_size].tolist())

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        contexts = [int(context) for context in logits[list(places), 0].tolist()]
        chosen: list[int | None] = [
            self._choose_one(context, draw) for context, draw in zip(contexts, draws, strict=True)
        ]
        self.calls += 1
        if self.calls % CHECKED == 0:
            real = torch.stack([self.recall.logits[context] for context in contexts])
            assert self.recall.executor.choose(real, range(len(real)), draws) == chosen
        return chosen

    def _choose_one(self, context: int, draw: Draw) -> int:
        """What the real executor would choose, without reading all the logits again."""
        tokens, log_weights = self.recall.target(context, draw.params)
        noise = gumbel_of_few(draw.stream, draw.position, tokens)
        return max(zip(map(add, log_weights, noise), tokens, strict=True))[1]


@dataclass
class LenientExecutor(RecallExecutor):
    """Wrong on purpose: a share of the rows takes the likeliest token whatever the noise says."""

    share: float = field(kw_only=True)

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        chosen = super().choose(logits, places, draws)
        for i, (place, draw) in enumerate(zip(logits[list(places), 0].tolist(), draws, strict=True)):
            if draw.stream.key < self.share * 2.0**64:
                chosen[i] = int(self.recall.logits[int(place)].argmax())
        return chosen


@dataclass
class FlatterDrafter:
    """Proposes by a flatter law than the target's, under the target's noise: often right, often not."""

    recall: Recall
    name: str = "flatter"
    captured: tuple[int, ...] = ()
    known: dict[tuple[int, ...], tuple[list[float], list[int]]] = field(default_factory=dict)

    def begin(self) -> None:
        """Nothing to forget."""

    def observe(self, observed: Sequence[Observed]) -> None:
        """Nothing to learn."""

    def forget(self, row: Row) -> None:
        """Nothing to forget."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._tree(request)) for request in requests]

    def _tree(self, request: DraftRequest) -> TokenTree:
        """A beam of ``width`` nodes, each with its ``width`` best children."""
        row, width = request.row, request.shape.width
        text = tuple(row.tokens(0, row.committed))
        tokens, parents, log_probs = [text[-1]], [-1], [0.0]
        level: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
        for depth in range(request.shape.levels):
            deeper = []
            for total, node, path in level:
                log_q, candidates = self._law(text + path)
                noise = gumbel_of_few(request.stream, row.committed + depth, candidates)
                best = sorted(zip(map(add, log_q, noise), log_q, candidates, strict=True), reverse=True)
                for _, log_prob, token in best[:width]:
                    deeper.append((total + log_prob, len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    log_probs.append(log_prob)
            level = sorted(deeper, reverse=True)[:width]
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))

    def _law(self, context: tuple[int, ...]) -> tuple[list[float], list[int]]:
        """Log probabilities and tokens of the three candidates behind a context."""
        if context not in self.known:
            logits, tokens = self.recall.behind(context).topk(3)
            self.known[context] = (0.6 * logits.double()).log_softmax(0).tolist(), tokens.tolist()
        return self.known[context]
