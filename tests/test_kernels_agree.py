"""Texts with the compiled kernels on and off part only where two tokens are as good as equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from specbatch_kernels.cpu import available, unavailable_reason

from specbatch.config import JobConfig
from specbatch.engine.commit import Voice
from specbatch.engine.encoder import open_encoder
from specbatch.engine.loop import Loop
from specbatch.engine.native import NativeEngine, open_engine
from specbatch.models.resolve import resolve_model
from specbatch.randomness import gumbel
from specbatch.rows import Prompt, RawPrompt, Row, SamplingParams
from specbatch.step import build_step
from specbatch.work import Work
from tests.engine.table_model import PromptFeed, StepClock

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available(), reason=f"no kernels: {unavailable_reason()}"),
]
LARGEST_GAP = 1e-4
JOBS = Path(__file__).resolve().parent.parent / "sample_data" / "jobs.parquet"
PARAMS = (SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=1.0))


def open_with(**settings: str) -> NativeEngine:
    job = JobConfig.model_validate({"input": ("memory",), "kv_memory": 2**28, "policy": "off", **settings})
    files = resolve_model("smollm2-135m", report=lambda _: None)
    return open_engine(job, files, open_encoder(job, files.directory))


def texts(engine: NativeEngine, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    job = JobConfig(input=("memory",), policy="off")
    host = StepClock()
    Loop(engine.target, job, PromptFeed(prompts, job), host).run()
    return [host.answers[p.row_index].token_ids for p in prompts]


def scores(engine: NativeEngine, prompt: Prompt, output: Sequence[int]) -> torch.Tensor:
    """What each token of ``output`` is the argmax of, given those before it: float64 ``[output, vocab]``."""
    store = engine.target.executor.store
    row = Row(prompt, output=list(output[:-1]))
    row.pages = list(range(1, -(-row.committed // store.page_size) + 1))
    step = build_step([Work(row, row.committed)], store.page_size)
    step = replace(step, wanted=torch.arange(row.committed - len(output), row.committed))
    logits = engine.target.executor.forward(step).logits.double()
    if prompt.params.temperature == 0.0:
        return logits
    stream, ids = Voice.of(row, 0, engine.target.tokenizer).stream, torch.arange(logits.shape[1])
    first = len(prompt.token_ids)
    noise = [gumbel(stream, first + place, ids) for place in range(len(output))]
    return logits / prompt.params.temperature + torch.stack(noise)


def test_texts_part_only_at_near_ties() -> None:
    """Behind every beginning of a text, not only its first divergence, both choose the same or a near tie."""
    compiled, plain = open_with(kernels="compiled", activations="float32"), open_with(kernels="torch")
    column = pq.read_table(JOBS, columns=["prompt"])["prompt"].to_pylist()
    contents = [text for text in column if text and len(text.split()) <= 20][:12]
    prompts = [
        plain.encoder.encode(RawPrompt(i, f"{i:032x}", None, "standard", text, PARAMS[i % 2]))
        for i, text in enumerate(contents)
    ]
    gaps: list[float] = []
    parted = 0
    outputs = texts(compiled, prompts)
    assert sum(map(len, outputs)) > 200
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = scores(plain, prompt, output)
        places = (expected.argmax(-1) != torch.tensor(output)).nonzero().flatten().tolist()
        parted += bool(places)
        for place in places:
            ours = scores(compiled, prompt, output[: place + 1])[-1]
            assert int(ours.argmax()) == output[place], "chosen before, and not now"
            pair = [output[place], int(expected[place].argmax())]
            gaps += [abs(float(each[pair].diff())) for each in (ours, expected[place])]
    assert max(gaps, default=0.0) < LARGEST_GAP
    assert parted < len(prompts) / 2, "half of the texts differ: that is no rounding"


def test_inputs_of_eight_bits_change_little_of_what_comes_next() -> None:
    """Divergence of the next token's distribution, in nats: a small part of what 4-bit weights cost."""
    rounded, exact = open_with(activations="int8"), open_with(activations="float32")
    assert rounded.numerics["kernels"] == exact.numerics["kernels"] + "-int8"
    divergence, count = 0.0, 0
    for i, text in enumerate(filter(None, pq.read_table(JOBS, columns=["prompt"])["prompt"].to_pylist())):
        prompt = exact.encoder.encode(RawPrompt(i, f"{i:032x}", None, "standard", text, PARAMS[0]))
        if not 20 <= len(prompt.token_ids) <= 200:
            continue
        start, rest = prompt.token_ids[:1], prompt.token_ids[1:]
        one, two = (
            scores(engine, replace(prompt, token_ids=start), rest).log_softmax(-1)
            for engine in (exact, rounded)
        )
        divergence += float((one.exp() * (one - two)).sum())
        count += len(rest)
    assert count > 500
    assert 0.0 < divergence / count < 0.01
