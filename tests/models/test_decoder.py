"""The decoder computes what transformers computes: tiny models of every family, and the default one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from specbatch.attention.base import Attention
from specbatch.attention.fused import FusedAttention
from specbatch.attention.reference import ReferenceAttention
from specbatch.cache import KVStore
from specbatch.config import JobConfig
from specbatch.engine.loop import Loop
from specbatch.engine.native import open_engine
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import Decoder, build_decoder
from specbatch.models.export import export_hf
from specbatch.models.files import ModelFiles
from specbatch.models.linear import PackedLinear
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_weights
from specbatch.rows import Prompt, RawPrompt, Row, SamplingParams
from specbatch.step import Work, build_step
from tests.engine.table_model import PromptFeed, StepClock
from tests.tiny_models import write_tiny_model

PAGE = 4
TOKENS = 16
SAMPLE = Path(__file__).parents[2] / "sample_data" / "jobs.parquet"
CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def load(files: ModelFiles) -> Decoder:
    config = ModelConfig.from_directory(files.directory)
    return build_decoder(config, load_weights(files, config), PackedLinear, torch.float32, CPU)


def token_logits(decoder: Decoder, attention: Attention, tokens: list[int], chunk: int) -> torch.Tensor:
    """Logits after every token, computed in prompt chunks."""
    config = decoder.config
    pages = list(range(1, 2 + len(tokens) // PAGE))
    shape = (config.num_layers, len(pages) + 1, config.num_kv_heads, config.head_dim)
    store = KVStore.zeros(shape, PAGE, torch.float32, CPU)
    logits = []
    with torch.inference_mode():
        row = Row(Prompt(0, "", None, "", tuple(tokens), SamplingParams()), pages=pages)
        while row.cached < len(tokens):
            count = min(chunk, len(tokens) - row.cached)
            step = build_step([Work(row, count)], PAGE)
            everything = replace(step, wanted=torch.arange(count))
            logits.append(decoder.forward(everything, store, attention).logits)
            row.cached += count
    return torch.cat(logits)


def transformers_logits(directory: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
]


@pytest.mark.parametrize(("family", "overrides"), CASES)
@pytest.mark.parametrize("attention", [FusedAttention(), ReferenceAttention()], ids=["fused", "reference"])
def test_logits_equal_transformers_in_every_family(
    tmp_path: Path, family: str, overrides: dict[str, Any], attention: Attention
) -> None:
    write_tiny_model(tmp_path, family, **overrides)
    decoder = load(resolve_model(str(tmp_path), report=lambda _: None))
    tokens = torch.randint(0, decoder.config.vocab_size, (45,), generator=torch.Generator().manual_seed(1))
    expected = transformers_logits(tmp_path, tokens.tolist())
    for chunk in (45, 7, 1):
        found = token_logits(decoder, attention, tokens.tolist(), chunk)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.model
def test_default_model_has_the_logits_of_transformers(tmp_path: Path) -> None:
    files = resolve_model("smollm2-135m", report=lambda _: None)
    decoder = load(files)
    export_hf(files, decoder.config, tmp_path)
    tokens = torch.randint(0, decoder.config.vocab_size, (96,), generator=torch.Generator().manual_seed(2))
    expected = transformers_logits(tmp_path, tokens.tolist())
    found = token_logits(decoder, FusedAttention(), tokens.tolist(), 40)
    assert float((found - expected).abs().max()) < 1e-3


@pytest.mark.model
def test_default_model_writes_the_greedy_text_of_transformers_on_50_prompts(tmp_path: Path) -> None:
    files = resolve_model("smollm2-135m", report=lambda _: None)
    job = JobConfig(input=("memory",), kv_memory=2**29, max_rows_in_flight=50)
    engine = open_engine(job, files)
    table = pq.read_table(SAMPLE, columns=["prompt"])
    texts = [text for text in table["prompt"].to_pylist() if text is not None and len(text) < 400]
    texts = (texts + [f"{text} Answer briefly." for text in texts])[:50]
    params = SamplingParams(max_tokens=TOKENS)
    prompts = [
        engine.encoder.encode(RawPrompt(i, str(i), None, "standard", text, params))
        for i, text in enumerate(texts)
    ]
    host = StepClock()
    Loop(engine.target, job, PromptFeed(prompts, job), host).run()
    export_hf(files, engine.config, tmp_path)
    expected = transformers_greedy(tmp_path, [p.token_ids for p in prompts], TOKENS)
    for i, answer in host.answers.items():
        ended = answer.token_ids[-1] in engine.config.eos_ids  # which transformers was told not to choose
        mine = answer.token_ids[:-1] if ended else answer.token_ids
        assert list(mine) == expected[i][: len(mine)], texts[i]
        assert ended or len(mine) == TOKENS
    assert len(host.answers) == 50


def transformers_greedy(directory: Path, prompts: list[tuple[int, ...]], count: int) -> list[list[int]]:
    """Greedy continuations of left-padded prompts, EOS not stopping anything."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
    )
    tokens: list[list[int]] = out[:, longest:].tolist()
    return tokens
