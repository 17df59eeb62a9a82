"""The decoder computes what transformers computes: tiny models of every family, and the default one."""

from __future__ import annotations

from collections.abc import Sequence
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
from specbatch.engine.encoder import open_encoder
from specbatch.engine.loop import Loop
from specbatch.engine.native import open_engine
from specbatch.models.config import ModelConfig
from specbatch.models.decoder import Decoder, build_decoder
from specbatch.models.export import export_hf
from specbatch.models.files import ModelFiles
from specbatch.models.linear import PackedLinear
from specbatch.models.resolve import resolve_model
from specbatch.models.weights import load_weights
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.step import build_step
from specbatch.work import Work
from tests.engine.table_model import PromptFeed, StepClock
from tests.tiny_models import write_tiny_model

PAGE = 4
TOKENS = 8
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


def in_transformers(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def transformers_logits(network: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = network(torch.tensor([tokens])).logits[0]
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
    expected = transformers_logits(in_transformers(tmp_path), tokens.tolist())
    for chunk in (45, 7, 1):
        found = token_logits(decoder, attention, tokens.tolist(), chunk)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The default model in transformers."""
    files = resolve_model("smollm2-135m", report=lambda _: None)
    folder = tmp_path_factory.mktemp("exported")
    export_hf(files, ModelConfig.from_directory(files.directory), folder)
    return in_transformers(folder)


@pytest.mark.model
def test_default_model_has_the_logits_of_transformers(network: Any) -> None:
    decoder = load(resolve_model("smollm2-135m", report=lambda _: None))
    tokens = torch.randint(0, decoder.config.vocab_size, (96,), generator=torch.Generator().manual_seed(2))
    expected = transformers_logits(network, tokens.tolist())
    found = token_logits(decoder, FusedAttention(), tokens.tolist(), 40)
    assert float((found - expected).abs().max()) < 1e-3


@pytest.mark.model
def test_default_model_writes_the_greedy_text_of_transformers_on_50_prompts(network: Any) -> None:
    """Each token is the one that transformers finds likeliest behind the same text: by induction, its own."""
    files = resolve_model("smollm2-135m", report=lambda _: None)
    job = JobConfig(
        input=("memory",), kv_memory=2**27, max_rows_in_flight=50, policy="off", activations="float32"
    )
    engine = open_engine(job, files, open_encoder(job, files.directory))
    column = pq.read_table(SAMPLE, columns=["prompt"])["prompt"].to_pylist()
    words = [text.split() for text in column if text is not None]
    texts = sorted({" ".join(text[:count]) for count in (12, 6) for text in words})[:50]
    params = SamplingParams(max_tokens=TOKENS)
    prompts = [
        Prompt(i, str(i), None, "standard", tuple(engine.target.tokenizer.encode(text, False)), params)
        for i, text in enumerate(texts)
    ]
    host = StepClock()
    Loop(engine.target, job, PromptFeed(prompts, job), host).run()
    assert len(host.answers) == 50
    written = [host.answers[p.row_index].token_ids for p in prompts]
    assert sum(map(len, written)) > 350
    for ids in written:
        assert len(ids) == TOKENS or ids[-1] in engine.config.eos_ids
    assert written == transformers_choices(network, [p.token_ids for p in prompts], written)


def transformers_choices(
    network: Any, prompts: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The likeliest token in place of each output token, behind the tokens before it."""
    texts = [prompt + output[:-1] for prompt, output in zip(prompts, outputs, strict=True)]
    longest = max(map(len, texts))
    ids = torch.tensor([text + (0,) * (longest - len(text)) for text in texts])
    choices = []
    with torch.inference_mode():
        states = network.model(ids).last_hidden_state  # attention is causal: padding behind changes nothing
        for state, prompt, text in zip(states, prompts, texts, strict=True):
            logits = network.lm_head(state[len(prompt) - 1 : len(text)])
            choices.append(tuple(logits.argmax(-1).tolist()))
    return choices
