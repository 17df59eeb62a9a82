"""An executor and a drafter whose passes take known times on a clock of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbatch.draft.base import Draft, DraftRequest, Observed, TreeShape
from specbatch.engine.build import DraftNeeds
from specbatch.engine.profiling import Subject
from specbatch.rows import Row
from specbatch.sampling import Draw
from specbatch.step import PassOutput, Step
from specbatch.tree import TokenTree
from tests.engine.table_model import CONFIG, VOCAB
from tests.hardware.costs import HERE, draft_s, pass_s

PAGE = 16
LARGEST = TreeShape(7, 8, 60)


@dataclass
class Clock:
    """Seconds that only our passes move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ClockedExecutor:
    """Takes as long as the formula says, and its own store."""

    clock: Clock
    num_pages: int = 5000
    page_size: int = PAGE
    bytes_per_token: int = 1000
    slowness: float = 1.0
    written: set[int] = field(default_factory=set)
    passes: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def store(self) -> ClockedExecutor:
        return self

    def forward(self, step: Step) -> PassOutput:
        rows = len(step.row_starts) - 1
        roots = list(step.row_starts[:-1])
        context = round(float(step.context_len[roots].double().mean())) - 1
        used = set(step.page_table.flatten().tolist())
        assert used <= self.written | {0}, "a pass over pages that have no memory"
        assert len(set(step.slots.tolist())) == step.num_tokens, "two tokens in one place"
        self.passes.append((step.num_tokens, rows, context))
        self.clock.now += self.slowness * pass_s(step.num_tokens, rows, context)
        return PassOutput(torch.zeros((len(step.wanted), VOCAB)))

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        assert max(places) < len(logits), "the next token behind a row that was not wanted"
        return [0] * len(draws)

    def scrub(self, pages: Sequence[int]) -> None:
        assert all(0 < page < self.num_pages for page in pages)
        self.written.update(pages)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        raise AssertionError("nothing is accepted here")


@dataclass
class ClockedDrafter:
    """Takes as long as the formula says; proposes nothing."""

    clock: Clock
    captured: tuple[int, ...] = (0, 2)
    name: str = "suffix+head"
    broken: bool = False
    known: set[Row] = field(default_factory=set)

    def begin(self) -> None:
        self.known.clear()

    def observe(self, observed: Sequence[Observed]) -> None:
        for item in observed:
            assert item.features is not None
            assert item.features.shape == (item.count, 2, CONFIG.hidden_size)
            self.known.add(item.row)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if self.broken:
            raise RuntimeError("no such head")
        assert {request.row for request in requests} <= self.known
        shape = requests[0].shape
        self.clock.now += draft_s(len(requests), shape.width, shape.levels)
        return [Draft(TokenTree.root(request.row.output[-1])) for request in requests]

    def forget(self, row: Row) -> None:
        self.known.discard(row)


def clocked(
    clock: Clock,
    executor: ClockedExecutor,
    drafter: ClockedDrafter | None,
    largest: TreeShape = LARGEST,
) -> Subject:
    needs = DraftNeeds() if drafter is None else DraftNeeds(drafter.captured, page_bytes=PAGE * 40)
    return Subject(HERE, CONFIG, executor, drafter, largest, needs, prefill_chunk=100)
