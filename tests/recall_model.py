"""A real model that is asked once per context and remembered: many short continuations in seconds."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.engine.executor import Executor
from specbatch.randomness import gumbel
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.sampling import Draw
from specbatch.step import PassOutput, Step, Work, build_step
from specbatch.tree import TokenTree
from tests.engine.table_model import TableExecutor


@dataclass
class Recall:
    """Logits of the real model behind each context that was ever asked for."""

    executor: Executor
    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)

    def place(self, context: tuple[int, ...]) -> int:
        if context not in self.known:
            self.known[context] = len(self.logits)
            self.logits.append(self._compute(context))
        return self.known[context]

    def behind(self, context: tuple[int, ...]) -> Tensor:
        """float32 ``[vocab]``."""
        return self.logits[self.place(context)]

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

    def choose(self, logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
        real = [self.recall.logits[int(place)] for place in logits[:, 0].tolist()]
        return self.recall.executor.choose(torch.stack(real), draws)


@dataclass
class LenientExecutor(RecallExecutor):
    """Wrong on purpose: a share of the rows takes the likeliest token whatever the noise says."""

    share: float = field(kw_only=True)

    def choose(self, logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
        chosen = super().choose(logits, draws)
        for i, (place, draw) in enumerate(zip(logits[:, 0].tolist(), draws, strict=True)):
            if draw.stream.key < self.share * 2.0**64:
                chosen[i] = int(self.recall.logits[int(place)].argmax())
        return chosen


@dataclass
class FlatterDrafter:
    """Proposes by a flatter law than the target's, under the target's noise: often right, often not."""

    recall: Recall
    name: str = "flatter"
    captured: tuple[int, ...] = ()
    known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

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
            laws = [self._law(text + path) for _, _, path in level]
            noise = gumbel(request.stream, row.committed + depth, torch.cat([law[1] for law in laws]))
            deeper = []
            for (total, node, path), (log_q, candidates), own in zip(
                level, laws, noise.view(-1, 3), strict=True
            ):
                for place in (log_q + own).topk(width).indices.tolist():
                    log_prob, token = float(log_q[place]), int(candidates[place])
                    deeper.append((total + log_prob, len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    log_probs.append(log_prob)
            level = sorted(deeper, reverse=True)[:width]
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))

    def _law(self, context: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Log probabilities and tokens of the three candidates behind a context."""
        if context not in self.known:
            logits, tokens = self.recall.behind(context).topk(3)
            self.known[context] = (0.6 * logits.double()).log_softmax(0), tokens
        return self.known[context]
