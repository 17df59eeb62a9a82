"""On CPU float32, a row's tokens are a function of the row alone: the default model, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
import torch

from specbatch.config import JobConfig
from specbatch.engine.executor import TorchExecutor
from specbatch.engine.loop import Loop
from specbatch.engine.native import NativeEngine, open_engine
from specbatch.models.resolve import resolve_model
from specbatch.rows import Prompt, RawPrompt, SamplingParams
from tests.engine.table_model import PromptFeed, StepClock

pytestmark = pytest.mark.model
Texts: TypeAlias = dict[int, tuple[int, ...]]

TASKS = (
    "Extract the city: 'The parcel left Porto on Monday and reached Ghent on Thursday.'",
    "Classify as bug or feature request: 'The export button does nothing when I press it.'",
    "Rewrite politely: send me the file now",
    "List three uses for a brick.",
    "What is 17 + 25? Answer with the number.",
    "Summarise in one sentence: " + "The meeting was moved because the room was taken by another team. " * 6,
)


@pytest.fixture(scope="module")
def engine() -> NativeEngine:
    job = JobConfig(input=("memory",), kv_memory=2**28, max_rows_in_flight=33)
    return open_engine(job, resolve_model("smollm2-135m", report=lambda _: None))


@pytest.fixture(scope="module")
def prompts(engine: NativeEngine) -> list[Prompt]:
    """33 rows: greedy, sampled, filtered, penalised; six texts, so that prefixes and rows repeat."""
    kinds = (
        SamplingParams(max_tokens=8),
        SamplingParams(max_tokens=6, temperature=1.0),
        SamplingParams(max_tokens=7, temperature=0.8, top_p=0.9, top_k=50),
        SamplingParams(max_tokens=7, temperature=1.2, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(max_tokens=6, temperature=1.0, seed=3),
    )
    return [
        engine.encoder.encode(
            RawPrompt(i, f"{i:032x}", None, "standard", TASKS[i % len(TASKS)], kinds[i % len(kinds)])
        )
        for i in range(33)
    ]


def answer(engine: NativeEngine, prompts: Sequence[Prompt], **settings: object) -> tuple[Texts, Loop]:
    """Tokens of every row under some settings; ``pages`` narrows the K/V memory."""
    pages = settings.pop("pages", None)
    job = JobConfig.model_validate({"input": ("memory",), **settings})
    target = engine.target
    if isinstance(pages, int):
        target = replace(target, executor=NarrowExecutor(target.executor, pages))
    host = StepClock()
    loop = Loop(target, job, PromptFeed(prompts, job), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    return {i: a.token_ids for i, a in host.answers.items()}, loop


class NarrowExecutor:
    """The same executor with fewer and smaller pages to give away."""

    def __init__(self, inner: object, num_pages: int) -> None:
        assert isinstance(inner, TorchExecutor)
        self._inner, self.num_pages, self.page_size = inner, num_pages, 4
        self.bytes_per_token = inner.bytes_per_token
        self.forward: Callable[..., torch.Tensor] = inner.forward
        self.scrub = inner.scrub


@pytest.fixture(scope="module")
def together(engine: NativeEngine, prompts: list[Prompt]) -> Texts:
    texts, _ = answer(engine, prompts, max_rows_in_flight=33)
    assert len(texts) == 33
    assert len(set(texts.values())) > 10
    return texts


def test_alone(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    for p in prompts[::6]:
        assert answer(engine, [p])[0] == {p.row_index: together[p.row_index]}


def test_in_another_order_with_other_batch_mates_and_chunks(
    engine: NativeEngine, prompts: list[Prompt], together: Texts
) -> None:
    shuffled = [replace(p, arrival=0.0) for p in prompts[::-1]]
    for i, p in enumerate(shuffled):
        shuffled[i] = replace(p, tier=("batch", "interactive")[i % 2])
    assert answer(engine, shuffled, max_rows_in_flight=7, prefill_chunk=13)[0] == together


def test_without_prefix_sharing(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    assert answer(engine, prompts, max_rows_in_flight=32, prefix_sharing=False)[0] == together


def test_after_preemption(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    texts, loop = answer(engine, prompts[:20], pages=90, prefix_sharing=False)
    assert loop.stats.preemptions > 0
    assert loop.stats.recomputed_tokens > 0
    assert texts == {i: together[i] for i in texts}
    assert len(texts) == 20


def test_rows_of_one_key_agree_and_of_different_keys_differ_when_sampled(
    prompts: list[Prompt], together: Texts
) -> None:
    same_prompt = [p for p in prompts if p.params.temperature == 1.0 and p.params.seed is None]
    by_text: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for p in same_prompt:
        by_text.setdefault(p.token_ids, set()).add(together[p.row_index])
    assert all(len(texts) > 1 for ids, texts in by_text.items() if _count(same_prompt, ids) > 1)
    seeded = [p for p in prompts if p.params.seed == 3]
    for p in seeded:
        twins = [q for q in seeded if q.token_ids == p.token_ids]
        assert len({together[q.row_index] for q in twins}) == 1


def _count(prompts: list[Prompt], ids: tuple[int, ...]) -> int:
    return sum(p.token_ids == ids for p in prompts)
