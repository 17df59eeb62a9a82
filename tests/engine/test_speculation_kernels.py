"""Real drafters and real kernels on tiny models: a row's tokens are those of plain decoding, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from specbatch_kernels.cpu import available

from specbatch.cache import bytes_per_token
from specbatch.config import JobConfig
from specbatch.draft.base import DraftRequest
from specbatch.draft.head_weights import HeadConfig, save_head
from specbatch.engine.build import build_executor
from specbatch.engine.drafters import make_drafter, plan_drafts
from specbatch.engine.executor import Executor
from specbatch.engine.loop import Loop, Target
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.rows import Answer, Prompt, SamplingParams
from specbatch.text.tokenizer import Tokenizer
from specbatch.tree import TokenTree
from tests.draft.heads_in_hand import random_head
from tests.engine.drafters import TestDrafter
from tests.engine.table_model import PromptFeed, StepClock
from tests.engine.test_speculation import check_account
from tests.tiny_models import write_tiny_model

NEEDS_KERNELS = pytest.mark.skipif(not available(), reason="no kernels")
KERNELS = ["torch", pytest.param("compiled", marks=NEEDS_KERNELS)]
POLICIES = [*(f"fixed:{gamma}" for gamma in range(1, 9)), "eagle"]
BOTH = [
    *(("torch", policy) for policy in ("fixed:3", "eagle")),
    *(pytest.param("compiled", policy, marks=NEEDS_KERNELS) for policy in POLICIES),
]
DRAFTERS = ("suffix", "model", "head", "suffix+head")
CAPTURED = (0, 2, 3)
BAD = 250
Texts = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Tiny:
    """A tiny target, and what drafts for it."""

    files: ModelFiles
    config: ModelConfig
    tokenizer: Tokenizer
    settings: Mapping[str, object]

    def job(self, **more: object) -> JobConfig:
        return JobConfig.model_validate({"policy": "off", **self.settings, **more})

    def target(self, job: JobConfig, pages: int | None = None) -> Target:
        plan = plan_drafts(job, self.files, self.config, self.tokenizer)
        if plan is None:
            return Target(self.config, self.tokenizer, self.executor(job))
        needs = plan.needs(job.page_size)
        if pages is not None:
            shape = (self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)
            page = job.page_size * bytes_per_token(shape, torch.float32) + needs.page_bytes
            job = job.model_copy(update={"kv_memory": needs.fixed_bytes + pages * page})
        executor = build_executor(job, self.files, self.config, needs).executor
        return Target(self.config, self.tokenizer, executor, make_drafter(plan, self.config, executor))

    def executor(self, job: JobConfig) -> Executor:
        return build_executor(job, self.files, self.config).executor


@pytest.fixture(scope="module", params=KERNELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder / "model", "qwen3")
    write_tiny_model(folder / "draft", "qwen2")
    files = resolve_model(str(folder / "model"), report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    head = HeadConfig(
        hidden=config.hidden_size,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        draft_vocab=96,
        captured=CAPTURED,
        eps=1e-5,
        rope_theta=1e4,
    )
    save_head(random_head(head, config.vocab_size), folder / "head.safetensors", "none")
    settings = {
        "input": ("memory",),
        "kv_memory": 2**22,
        "page_size": 4,
        "kernels": request.param,
        "draft_head": folder / "head.safetensors",
        "threads": 1,
    }
    threads = torch.get_num_threads()
    yield Tiny(files, config, Tokenizer.load(files.directory), settings)
    torch.set_num_threads(threads)


KINDS = (
    SamplingParams(max_tokens=10),
    SamplingParams(max_tokens=9, temperature=1.0),
    SamplingParams(max_tokens=8, temperature=0.7, top_p=0.9, top_k=50),
    SamplingParams(max_tokens=7, repetition_penalty=1.3),
    SamplingParams(max_tokens=8, temperature=1.1, min_p=0.05, repetition_penalty=1.2),
)


BATCHES = {1: (3, 4), 4: (5, 8), 32: (32, 4)}
"""Rows in flight → rows, and tokens of each at most."""


def prompts(count: int) -> list[Prompt]:
    """Five kinds of rows, some of which share their beginning."""
    found = []
    for i in range(count):
        tokens = tuple((7 * j * j + 3 * (i % 4) + 11) % 300 for j in range(5 + 3 * (i % 7)))
        found.append(Prompt(i, f"{i:032x}", None, "standard", tokens * 2, KINDS[i % len(KINDS)]))
    return found


def shortened(rows: Sequence[Prompt], length: int) -> list[Prompt]:
    return [replace(p, params=replace(p.params, max_tokens=min(length, p.params.max_tokens))) for p in rows]


def answers(target: Target, job: JobConfig, rows: Sequence[Prompt]) -> dict[int, Answer]:
    host = StepClock()
    loop = Loop(target, job, PromptFeed(rows, job), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    assert loop.finish().draft_fault == ""
    for answer in host.answers.values():
        check_account(answer)
    return host.answers


def texts(found: Mapping[int, Answer]) -> Texts:
    return {i: answer.token_ids for i, answer in found.items()}


@pytest.fixture(scope="module")
def plain(tiny: Tiny) -> Texts:
    """Every row alone, without speculation; all of the first five, and the beginnings of the others."""
    job = tiny.job(draft_head=None, max_rows_in_flight=1)
    rows = prompts(32)
    found = texts(answers(tiny.target(job), job, rows[:5] + shortened(rows[5:], BATCHES[32][1])))
    assert len(set(found.values())) > 10
    return found


def of(found: Texts, rows: Sequence[Prompt]) -> Texts:
    return {p.row_index: found[p.row_index] for p in rows}


@pytest.mark.parametrize(("tiny", "policy"), BOTH, indirect=["tiny"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_and_policy_at_every_batch_size(
    tiny: Tiny, plain: Texts, drafter: str, policy: str
) -> None:
    more: dict[str, object] = {} if "head" in drafter else {"draft_head": None}
    if drafter == "model":
        more["draft_model"] = str(tiny.files.directory)  # drafts what it verifies: long accepted runs
    job = tiny.job(policy=policy, drafter=drafter, **more)
    target = tiny.target(job)
    for in_flight, (count, length) in BATCHES.items():
        some = shortened(prompts(count), length)
        found = answers(target, job.model_copy(update={"max_rows_in_flight": in_flight}), some)
        assert texts(found) == {p.row_index: plain[p.row_index][: p.params.max_tokens] for p in some}
    if drafter == "model":
        accounts = [answer.drafts for answer in found.values()]
        assert sum(a.accepted for a in accounts) > sum(a.verifications for a in accounts) / 4


def test_another_model_of_the_same_vocabulary_drafts(tiny: Tiny, plain: Texts) -> None:
    draft = str(tiny.files.directory.parent / "draft")
    job = tiny.job(policy="eagle", drafter="model", draft_model=draft, draft_head=None, max_rows_in_flight=4)
    found = answers(tiny.target(job), job, prompts(5))
    assert texts(found) == of(plain, prompts(5))


@pytest.mark.parametrize("drafter", ["suffix+head", "model"])
def test_under_memory_pressure(tiny: Tiny, drafter: str) -> None:
    rows = [
        replace(p, token_ids=p.token_ids[:6], params=replace(p.params, max_tokens=24)) for p in prompts(6)
    ]
    alone = tiny.job(draft_head=None, max_rows_in_flight=2)
    expected = texts(answers(tiny.target(alone), alone, rows))
    more: dict[str, object] = {}
    if drafter == "model":
        more = {"draft_model": str(tiny.files.directory), "draft_head": None}
    job = tiny.job(policy="eagle", drafter=drafter, prefix_sharing=False, prefill_chunk=37, **more)
    target = tiny.target(job, pages=16)
    host = StepClock()
    loop = Loop(target, job, PromptFeed(rows, job), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    stats = loop.finish()
    assert stats.preemptions > 0
    assert stats.draft_fault == ""
    assert texts(host.answers) == expected


class Spoiled(TestDrafter):
    """Always proposes one token that the target cannot compute, before and between others."""

    def tree(self, request: DraftRequest) -> TokenTree:
        root = request.row.token(request.row.committed - 1)
        tokens, parents = [root, BAD, 5, 7, BAD], [-1, 0, 0, 1, 2]
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array([0.0, *[-0.5] * 4]))


@pytest.mark.parametrize("policy", ["eagle", "fixed:1", "fixed:2"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_token_without_an_embedding_cannot_spread_from_a_draft(
    tmp_path: Path, kernels: str, policy: str
) -> None:
    """It is never chosen, so plain decoding never meets it; one that proposes it must not matter."""
    write_tiny_model(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    files = resolve_model(str(tmp_path), report=lambda _: None)
    config = ModelConfig.from_directory(tmp_path)
    settings = {"kv_memory": 2**20, "page_size": 4, "kernels": kernels, "policy": policy, "threads": 1}
    job = JobConfig.model_validate({"input": ("memory",), **settings})
    target = Target(config, Tokenizer.load(tmp_path), build_executor(job, files, config).executor)
    everything = texts(answers(target, job, prompts(20)))
    rows = [p for p in prompts(20) if BAD not in p.token_ids and BAD not in everything[p.row_index]]
    expected = {p.row_index: everything[p.row_index] for p in rows}
    assert sum(map(bool, expected.values())) > 8
    found = answers(replace(target, drafter=Spoiled()), job, rows)
    assert texts(found) == expected
    assert any(a.drafts.accepted for a in found.values()) or policy != "eagle"
