"""On CPU float32, a row's tokens are a function of the row alone: the default model, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
import torch
from specbatch_kernels.cpu import available, unavailable_reason

from specbatch.cache import KVStore
from specbatch.config import JobConfig
from specbatch.engine.compiled_executor import CompiledExecutor
from specbatch.engine.encoder import open_encoder
from specbatch.engine.executor import Executor, TorchExecutor
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
    "Summarise in one sentence: " + "The meeting was moved because the room was taken by another team. " * 4,
)
PAGE = 4
ROWS = {"compiled": 64, "torch": 16}
CHUNK = {"compiled": 13, "torch": 29}
BATCHES = {"compiled": (2, 3, 5, 9, 17), "torch": (3, 9)}


@pytest.fixture(scope="module", params=["compiled", "torch"])
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    if request.param == "compiled" and not available():
        pytest.skip(unavailable_reason())
    return opened(request.param)


def opened(kernels: str, **more: object) -> NativeEngine:
    settings = {
        "input": ("memory",),
        "kv_memory": 2**28,
        "max_rows_in_flight": 64,
        "page_size": PAGE,
        "policy": "off",
    }
    job = JobConfig.model_validate({**settings, "kernels": kernels, **more})
    files = resolve_model("smollm2-135m", report=lambda _: None)
    return open_engine(job, files, open_encoder(job, files.directory))


def kernels_of(engine: NativeEngine) -> str:
    return engine.numerics["kernels"].split("-")[0]


@pytest.fixture(scope="module")
def prompts(engine: NativeEngine) -> list[Prompt]:
    """Greedy, sampled, filtered, penalised rows; six texts, so that prefixes and rows repeat."""
    kinds = (
        SamplingParams(max_tokens=6),
        SamplingParams(max_tokens=5, temperature=1.0),
        SamplingParams(max_tokens=5, temperature=0.8, top_p=0.9, top_k=50),
        SamplingParams(max_tokens=6, temperature=1.2, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(max_tokens=5, temperature=1.0, seed=3),
    )
    encoded = [
        engine.encoder.encode(
            RawPrompt(i, f"{i:032x}", None, "standard", TASKS[i % len(TASKS)], kinds[i % len(kinds)])
        )
        for i in range(ROWS[kernels_of(engine)])
    ]
    # Without most of what the template says to every model: other lengths remain, and less to compute.
    return [replace(p, token_ids=p.token_ids[-max(24, len(p.token_ids) - 30) :]) for p in encoded]


def answer(engine: NativeEngine, prompts: Sequence[Prompt], **settings: object) -> tuple[Texts, Loop]:
    """Tokens of every row under some settings; ``pages`` narrows the K/V memory."""
    pages = settings.pop("pages", None)
    job = JobConfig.model_validate({"input": ("memory",), "policy": "off", **settings})
    target = engine.target
    if isinstance(pages, int):
        target = replace(target, executor=narrow(target.executor, pages))
    host = StepClock()
    loop = Loop(target, job, PromptFeed(prompts, job), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    return {i: a.token_ids for i, a in host.answers.items()}, loop


def narrow(executor: Executor, num_pages: int) -> Executor:
    """The same executor over fewer pages."""
    assert isinstance(executor, TorchExecutor | CompiledExecutor)
    layers, _, heads, head_dim = executor.store.keys.shape
    store = KVStore.zeros((layers, num_pages, heads, head_dim), PAGE, torch.float32, torch.device("cpu"))
    return replace(executor, store=store)


@pytest.fixture(scope="module")
def together(engine: NativeEngine, prompts: list[Prompt]) -> Texts:
    texts, _ = answer(engine, prompts, max_rows_in_flight=64)
    assert len(texts) == len(prompts)
    assert len(set(texts.values())) > 10
    assert sum(map(len, texts.values())) > 4 * len(texts)
    return texts


def test_alone(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    for p in prompts[::7][:8]:  # every text and every kind of sampling
        assert answer(engine, [p])[0] == {p.row_index: together[p.row_index]}


def test_in_another_order_with_other_batch_mates_and_chunks(
    engine: NativeEngine, prompts: list[Prompt], together: Texts
) -> None:
    shuffled = [replace(p, arrival=0.0) for p in prompts[::-1]]
    for i, p in enumerate(shuffled):
        shuffled[i] = replace(p, tier=("batch", "interactive")[i % 2])
    assert (
        answer(engine, shuffled, max_rows_in_flight=7, prefill_chunk=CHUNK[kernels_of(engine)])[0] == together
    )


def test_without_prefix_sharing(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    some = prompts[:32]
    assert answer(engine, some, max_rows_in_flight=32, prefix_sharing=False)[0] == {
        p.row_index: together[p.row_index] for p in some
    }


def test_after_preemption(engine: NativeEngine, prompts: list[Prompt]) -> None:
    """Short prompts and long answers: rows outgrow the memory while they are decoded."""
    rows = [
        replace(p, token_ids=p.token_ids[-12:], params=replace(p.params, max_tokens=12)) for p in prompts[:4]
    ]
    expected, calm = answer(engine, rows)
    texts, loop = answer(engine, rows, pages=11, prefix_sharing=False)
    assert calm.stats.preemptions == 0 < loop.stats.preemptions
    assert loop.stats.recomputed_tokens > 0
    assert texts == expected
    assert len(texts) == 4


def test_at_every_batch_size(engine: NativeEngine, prompts: list[Prompt], together: Texts) -> None:
    for rows in BATCHES[kernels_of(engine)]:
        some = prompts[: rows + 1]
        assert answer(engine, some, max_rows_in_flight=rows)[0] == {
            p.row_index: together[p.row_index] for p in some
        }


def test_with_one_thread_and_beside_a_busy_process(
    engine: NativeEngine, prompts: list[Prompt], together: Texts
) -> None:
    threads = torch.get_num_threads()
    single, few = opened(kernels_of(engine), kv_memory=2**27, threads=1), prompts[:5]
    expected = {p.row_index: together[p.row_index] for p in few}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert answer(single, few)[0] == expected
            torch.set_num_threads(threads)
            assert answer(engine, few)[0] == expected
        finally:
            busy.kill()
            torch.set_num_threads(threads)


def test_the_key_addresses_the_randomness_and_a_seed_replaces_it(
    engine: NativeEngine, prompts: list[Prompt]
) -> None:
    hot = SamplingParams(max_tokens=4, temperature=1.5)
    rows = [replace(prompts[3], row_index=i, key=f"{i % 3:032x}", params=hot) for i in range(6)]
    seeded = [replace(row, row_index=6 + i, params=replace(hot, seed=9)) for i, row in enumerate(rows)]
    texts, _ = answer(engine, rows + seeded)
    assert [texts[i] for i in range(3)] == [texts[i] for i in range(3, 6)]
    assert len({texts[i] for i in range(3)}) > 1
    assert len({texts[i] for i in range(6, 12)}) == 1
