"""Rows, pages and a make-believe target around a head drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from specbatch_kernels.cpu import ThreadPool, available, pack
from torch import Tensor

from specbatch.draft.base import Draft, DraftRequest, Observed, TreeShape
from specbatch.draft.head import HeadDrafter
from specbatch.draft.head_runner import CompiledHead, HeadRunner, TorchHead, compile_head, torch_head
from specbatch.draft.head_weights import HeadConfig
from specbatch.pages import PagePool
from specbatch.randomness import Purpose, Stream
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree
from tests.draft.heads_in_hand import CONFIG, TARGET, VOCABULARY, SpeltOut, random_embedding, random_head

PAGE = 4
EMBEDDING = random_embedding()
FORMS = {
    "eagle3.1": CONFIG,
    "eagle3": replace(CONFIG, feature_norm="none", norm_output=False),
    "joint": replace(CONFIG, feature_norm="joint", norm_output=False, norm_before_residual=True),
}
CHAIN = TreeShape(4, 1, 4)


def compiled(config: HeadConfig) -> CompiledHead:
    if not available():
        pytest.skip("the CPU kernels are not compiled")
    return compile_head(random_head(config), TARGET, pack(EMBEDDING, "f32"), ThreadPool(1))


def plain(config: HeadConfig) -> TorchHead:
    return torch_head(random_head(config), TARGET, EMBEDDING)


RUNNERS: dict[str, Callable[[HeadConfig], HeadRunner]] = {"compiled": compiled, "torch": plain}


def true_features(tokens: Sequence[int]) -> Tensor:
    """What a target would compute at each token: a function of the token and all before it."""
    rows = []
    state = 0
    for token in tokens:
        state = (31 * state + token + 7) % 100_003
        generator = torch.Generator().manual_seed(state)
        rows.append(torch.randn((3, 32), generator=generator) * (1.0 + state % 5))
    return torch.stack(rows) if rows else torch.zeros((0, 3, 32))


class World:
    """Rows, their pages, and a target that stores whatever it is told to."""

    def __init__(self, runner: HeadRunner, scratch_pages: int = 40) -> None:
        self.pool = PagePool(120, PAGE, sharing=True)
        self.drafter = HeadDrafter(runner, 120, PAGE, scratch_pages)
        self.spelt_out = SpeltOut(random_head(runner.config), EMBEDDING)
        self.rows: list[Row] = []

    def start(self, prompt: Sequence[int], temperature: float = 0.0) -> Row:
        key = str(len(self.rows))
        params = SamplingParams(temperature=temperature)
        row = Row(Prompt(len(self.rows), key, None, "", tuple(prompt), params))
        self.rows.append(row)
        self.admit(row)
        return row

    def admit(self, row: Row) -> None:
        """Share what pages there are, of rows whose entries are made: entries of the last few tokens wait."""
        self.propose(*((r, TreeShape(1, 1, 1)) for r in self.rows if r.pages and r.cached == r.committed - 1))
        row.pages.extend(self.pool.match(self.text(row), row.committed - 1))
        row.cached = len(row.pages) * PAGE

    def preempt(self, row: Row) -> None:
        """Take a row's pages, which then are those of anyone with the same text.

        What the head has not made entries of by then is lost, and costs acceptance only: drafting
        first leaves nothing to lose.
        """
        if row.cached == row.committed - 1:
            self.propose((row, TreeShape(1, 1, 1)))
        self.drafter.forget(row)
        self.pool.release(row.pages)
        row.pages.clear()
        row.cached = 0

    def text(self, row: Row) -> list[int]:
        return [row.token(position) for position in range(row.committed)]

    def compute(self, *work: tuple[Row, int, Sequence[int]]) -> None:
        """One pass: for each row, store ``count`` tokens, of which the last are new: then observe."""
        seen = []
        for row, count, new in work:
            first = row.cached
            row.output.extend(new)
            row.cached = first + count
            self.reach(row)
            features = true_features(self.text(row)[: row.cached])[first:]
            strided = features.transpose(0, 1).contiguous().transpose(0, 1)  # as the engine hands it over
            seen.append(Observed(row, first, strided.numpy()))
            self.pool.publish(row.pages, self.text(row)[: row.cached], first // PAGE)
        self.drafter.observe(seen)

    def reach(self, row: Row) -> None:
        """Pages up to the last committed token, as a plan has them."""
        missing = self.pool.pages_for(row.committed) - len(row.pages)
        fresh = self.pool.allocate(max(0, missing))
        assert fresh is not None
        row.pages.extend(fresh)

    def prefill(self, row: Row, chunk: int = 100) -> None:
        """Up to the first output token."""
        while row.cached < len(row.prompt.token_ids):
            count = min(chunk, len(row.prompt.token_ids) - row.cached)
            last = row.cached + count == len(row.prompt.token_ids)
            self.compute((row, count, [5] if last else []))

    def propose(self, *requests: tuple[Row, TreeShape]) -> list[Draft]:
        return self.drafter.propose([DraftRequest(row, shape, stream(row)) for row, shape in requests])

    def wake(self) -> None:
        """Draft for a while, so that all rows are made ready for drafts."""
        row = self.start(prompt(3, 99))
        self.prefill(row)
        for token in range(10):
            self.propose((row, CHAIN))
            self.compute((row, 1, [token]))

    def check(self, *requests: tuple[Row, TreeShape]) -> None:
        """Propose for all together, and compare with each row recomputed alone."""
        before = [(self.text(row), list(row.pages), row.cached) for row, _ in requests]
        for (row, shape), draft in zip(requests, self.propose(*requests), strict=True):
            text = self.text(row)
            temperature = row.prompt.params.temperature
            expected = self.spelt_out.tree(text, true_features(text[:-1]), shape, temperature, stream(row))
            draft.tree.check()
            assert draft.tree.tokens[0] == text[-1]
            assert as_paths(draft.tree) == pytest.approx(expected, abs=2e-4)
            assert draft.passes >= 1
            assert draft.flops > 0
        assert before == [(self.text(row), list(row.pages), row.cached) for row, _ in requests]


def stream(row: Row) -> Stream:
    return Stream.at(3, row.prompt.key, Purpose.TOKEN)


def as_paths(tree: TokenTree) -> dict[tuple[int, ...], float]:
    return {tree.path(node): float(tree.log_probs[node]) for node in range(1, len(tree))}


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
