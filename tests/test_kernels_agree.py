"""Texts with the compiled kernels on and off part only where two tokens are as good as equal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from specbatch_kernels.cpu import available, unavailable_reason

from specbatch.config import JobConfig
from specbatch.engine.commit import Voice
from specbatch.engine.loop import Loop
from specbatch.engine.native import NativeEngine, open_engine
from specbatch.models.resolve import resolve_model
from specbatch.randomness import gumbel
from specbatch.rows import Prompt, RawPrompt, Row, SamplingParams
from specbatch.step import Work, build_step
from tests.engine.table_model import PromptFeed, StepClock

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available(), reason=f"no kernels: {unavailable_reason()}"),
]
LARGEST_GAP = 1e-4
JOBS = Path(__file__).resolve().parent.parent / "sample_data" / "jobs.parquet"
PARAMS = (SamplingParams(max_tokens=32), SamplingParams(max_tokens=32, temperature=1.0))


def open_with(kernels: str) -> NativeEngine:
    job = JobConfig.model_validate({"input": ("memory",), "kv_memory": 2**28, "kernels": kernels})
    return open_engine(job, resolve_model("smollm2-135m", report=lambda _: None))


def texts(engine: NativeEngine, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    job = JobConfig(input=("memory",))
    host = StepClock()
    Loop(engine.target, job, PromptFeed(prompts, job), host).run()
    return [host.answers[p.row_index].token_ids for p in prompts]


def scores(engine: NativeEngine, prompt: Prompt, output: Sequence[int]) -> torch.Tensor:
    """What the token after ``output`` is the argmax of, float64 ``[vocab]``."""
    store = engine.target.executor.store
    row = Row(prompt, output=list(output))
    row.pages = list(range(1, -(-row.committed // store.page_size) + 1))
    step = build_step([Work(row, row.committed)], store.page_size)
    logits = engine.target.executor.forward(step).logits[0].double()
    if prompt.params.temperature == 0.0:
        return logits
    stream = Voice.of(row, 0, engine.target.tokenizer).stream
    noise = gumbel(stream, row.committed, torch.arange(len(logits)))
    return logits / prompt.params.temperature + noise


def test_first_divergence_is_a_near_tie() -> None:
    engines = [open_with("compiled"), open_with("torch")]
    column = pq.read_table(JOBS, columns=["prompt"])["prompt"].to_pylist()
    contents = [text for text in column if text and len(text.split()) <= 60][:24]
    prompts = [
        engines[0].encoder.encode(RawPrompt(i, f"{i:032x}", None, "standard", text, PARAMS[i % 2]))
        for i, text in enumerate(contents)
    ]
    gaps = []
    for prompt, ours, plain in zip(prompts, *(texts(engine, prompts) for engine in engines), strict=True):
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(ours, plain, strict=False))))
        if same == len(ours) == len(plain):
            continue
        for engine in engines:
            best = scores(engine, prompt, ours[:same]).topk(2)
            assert set(best.indices.tolist()) == {ours[same], plain[same]}
            gaps.append(float(best.values[0] - best.values[1]))
    assert max(gaps, default=0.0) < LARGEST_GAP
    assert len(gaps) < len(prompts), "half of the texts differ: that is no rounding"
