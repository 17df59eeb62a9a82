"""Inside the engine a head sees the target's true features, at the right tokens, whatever happens to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from specbatch_kernels.cpu import available
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbatch.config import JobConfig
from specbatch.draft.base import Draft, Drafter, DraftRequest, Observed, TreeShape
from specbatch.draft.head_weights import HeadConfig, load_head, save_head
from specbatch.engine.build import build_executor
from specbatch.engine.drafters import make_drafter, plan_drafts
from specbatch.engine.loop import Loop, Target
from specbatch.models.config import ModelConfig
from specbatch.models.resolve import resolve_model
from specbatch.randomness import Stream
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.text.tokenizer import Tokenizer
from specbatch.tree import TokenTree
from tests.draft.head_world import as_paths
from tests.draft.heads_in_hand import SpeltOut, random_head
from tests.engine.table_model import PromptFeed, StepClock
from tests.tiny_models import write_tiny_model

KERNELS = ["torch", pytest.param("compiled", marks=pytest.mark.skipif(not available(), reason="no kernels"))]


@dataclass
class Recorder:
    """Passes everything on and keeps what was proposed."""

    inner: Drafter
    drafts: list[tuple[list[int], float, Stream, TreeShape, TokenTree]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def captured(self) -> tuple[int, ...]:
        return self.inner.captured

    def begin(self) -> None:
        self.inner.begin()

    def observe(self, observed: Sequence[Observed]) -> None:
        self.inner.observe(observed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = self.inner.propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            row = request.row
            text = [row.token(position) for position in range(row.committed)]
            heat = row.prompt.params.temperature
            self.drafts.append((text, heat, request.stream, request.shape, draft.tree))
        return drafts

    def forget(self, row: Row) -> None:
        self.inner.forget(row)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("policy", ["fixed:3", "eagle"])
def test_drafts_equal_recomputation_from_the_hidden_states_of_transformers(
    tmp_path: Path, kernels: str, policy: str
) -> None:
    write_tiny_model(tmp_path / "model", "llama")
    files = resolve_model(str(tmp_path / "model"), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    shape = HeadConfig(
        hidden=config.hidden_size,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=96,
        draft_vocab=90,
        captured=(2, 0, 3),
        eps=1e-5,
        rope_theta=2e4,
    )
    save_head(random_head(shape, config.vocab_size), tmp_path / "head.safetensors", "none")
    job = JobConfig.model_validate(
        {
            "input": ("memory",),
            "kv_memory": 2**22,
            "page_size": 4,
            "kernels": kernels,
            "threads": 1,
            "policy": policy,
            "drafter": "head",
            "draft_head": tmp_path / "head.safetensors",
            "tree_levels": 3,
            "tree_width": 2,
            "tree_nodes": 6,
            "prefill_chunk": 11,
        }
    )
    recorder = _run(job, tmp_path / "model", config)
    assert len(recorder.drafts) > 20
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    embedding = model.get_input_embeddings().weight.data
    spelt_out = SpeltOut(load_head(tmp_path / "head.safetensors", config), embedding, config)
    for text, heat, stream, bounds, tree in recorder.drafts[::3]:
        expected = spelt_out.tree(text, _features(model, text[:-1], shape.captured), bounds, heat, stream)
        assert as_paths(tree) == pytest.approx(expected, abs=2e-3)


def _run(job: JobConfig, directory: Path, config: ModelConfig) -> Recorder:
    files = resolve_model(str(directory), report=lambda _: None)
    tokenizer = Tokenizer.load(files.directory)
    plan = plan_drafts(job, files, config, tokenizer)
    assert plan is not None
    threads = torch.get_num_threads()
    executor = build_executor(job, files, config, plan.needs(job.page_size)).executor
    recorder = Recorder(make_drafter(plan, config, executor))
    loop = Loop(Target(config, tokenizer, executor, recorder), job, PromptFeed(_prompts(), job), StepClock())
    while loop.rows_left():
        loop.step()
        loop.check()
    assert loop.finish().draft_fault == ""
    torch.set_num_threads(threads)
    return recorder


def _prompts() -> list[Prompt]:
    """Rows that share their beginning, greedy and sampled."""
    common = [(13 * i * i + 5) % 300 for i in range(18)]
    kinds = (SamplingParams(max_tokens=12), SamplingParams(max_tokens=9, temperature=0.9))
    return [
        Prompt(i, f"{i:032x}", None, "standard", (*common[: 6 + 4 * (i % 4)], 7 + i, 9), kinds[i % 2])
        for i in range(6)
    ]


@torch.inference_mode()
def _features(model: Any, tokens: Sequence[int], captured: Sequence[int]) -> Tensor:
    """Inputs of the captured layers; the last of all is that of the final norm."""
    last: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0]))
    states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    hook.remove()
    layers = [*states[:-1], last[0]]
    return torch.stack([layers[layer][0] for layer in captured], dim=1)
