"""Every attention kernel against the slow one, and the exactness each of them promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.attention.base import Attention
from specbatch.attention.fused import FusedAttention, fused_attention_is_invariant
from specbatch.attention.reference import ReferenceAttention
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import Step, build_step
from specbatch.work import Work

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
Spans = list[tuple[int, int]]  # (cached, count) of each row


@pytest.fixture(scope="module", params=["fused", "reference"])
def kernel(request: pytest.FixtureRequest) -> Attention:
    return FusedAttention() if request.param == "fused" else ReferenceAttention()


class Store:
    """Rows whose keys and values lie on pages drawn at random, everything else poisoned."""

    def __init__(self, spans: Spans, page_size: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        needed = [-(-(cached + count) // page_size) for cached, count in spans]
        order = (torch.randperm(sum(needed), generator=self.generator) + 1).tolist()
        shape = ((sum(needed) + 1) * page_size, KV_HEADS, HEAD_DIM)
        self.keys, self.values = torch.full(shape, 1e6), torch.full(shape, 1e6)
        self.page_size = page_size
        self.rows, self.content = [], []
        for i, (cached, count) in enumerate(spans):
            pages = [order.pop() for _ in range(needed[i])]
            prompt = Prompt(i, "", None, "", (0,) * (cached + count), SamplingParams())
            self.rows.append(Row(prompt, pages=pages, cached=cached))
            content = torch.randn((2, cached + count, KV_HEADS, HEAD_DIM), generator=self.generator)
            for position in range(cached + count):
                slot = pages[position // page_size] * page_size + position % page_size
                self.keys[slot], self.values[slot] = content[0, position], content[1, position]
            self.content.append(content)

    def step(self, rows: list[int]) -> Step:
        work = [Work(self.rows[i], self.rows[i].committed - self.rows[i].cached) for i in rows]
        return build_step(work, self.page_size)


def direct(queries: torch.Tensor, content: torch.Tensor, cached: int) -> torch.Tensor:
    """Textbook attention of one row in float64."""
    keys, values = content.double().repeat_interleave(HEADS // KV_HEADS, dim=2)
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * HEAD_DIM**-0.5
    hidden = torch.arange(len(keys)) > (torch.arange(len(queries)) + cached).unsqueeze(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


spans = st.lists(
    st.tuples(st.integers(0, 200), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=6
)


@settings(max_examples=25, deadline=None)
@given(spans, st.sampled_from([1, 5, 16, 64]), st.integers(0, 99))
def test_every_kernel_computes_attention(kernel: Attention, spans: Spans, page_size: int, seed: int) -> None:
    store = Store(spans, page_size, seed)
    step = store.step(list(range(len(spans))))
    queries = torch.randn((step.num_tokens, HEADS, HEAD_DIM), generator=store.generator)
    out = kernel.prepare(step)(queries, store.keys, store.values)
    for i, (cached, _) in enumerate(spans):
        span = slice(step.row_starts[i], step.row_starts[i + 1])
        assert torch.allclose(
            out[span].double(), direct(queries[span], store.content[i], cached), rtol=1e-4, atol=1e-5
        )


@settings(max_examples=25, deadline=None)
@given(spans, st.sampled_from([(1, 16), (16, 64), (5, 7)]), st.integers(0, 99))
def test_bits_do_not_depend_on_batch_pages_or_order(
    kernel: Attention, spans: Spans, sizes: tuple[int, int], seed: int
) -> None:
    here, there = (Store(spans, size, seed) for size in sizes)
    there.content = here.content
    for i, row in enumerate(there.rows):
        for position in range(row.committed):
            slot = row.pages[position // sizes[1]] * sizes[1] + position % sizes[1]
            there.keys[slot], there.values[slot] = here.content[i][:, position]
    step = here.step(list(range(len(spans))))
    queries = torch.randn((step.num_tokens, HEADS, HEAD_DIM), generator=here.generator)
    together = kernel.prepare(step)(queries, here.keys, here.values)
    for i, row in enumerate(there.rows):
        mine = slice(step.row_starts[i], step.row_starts[i + 1])
        alone = kernel.prepare(there.step([i]))(queries[mine], there.keys, there.values)
        assert torch.equal(alone, together[mine])
        cached, row.cached = row.cached, row.committed - 1
        last = kernel.prepare(there.step([i]))(queries[mine][-1:], there.keys, there.values)
        row.cached = cached
        assert torch.equal(last[0], together[mine][-1]), "a token differs between prefill and decoding"


@pytest.mark.parametrize("shape", [(9, 3, 64), (14, 2, 64), (4, 4, 8)])
def test_the_start_up_probe_accepts_this_machine(shape: tuple[int, int, int]) -> None:
    assert fused_attention_is_invariant(*shape)
