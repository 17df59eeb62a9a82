"""Ten thousand sampled continuations of the default model, speculated, have the law of plain sampling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import pytest
import torch

from specbatch.config import JobConfig
from specbatch.engine.encoder import open_encoder
from specbatch.engine.loop import Loop, Target
from specbatch.engine.native import NativeEngine, open_engine
from specbatch.models.resolve import resolve_model
from specbatch.rows import Prompt, RawPrompt, SamplingParams
from specbatch.sampling import distribution
from tests.engine.table_model import PromptFeed, StepClock
from tests.recall_model import FlatterDrafter, LenientExecutor, Recall, RecallExecutor

ROWS = 10_000
PARAMS = SamplingParams(temperature=1.0, top_k=2, max_tokens=4)
TASK = "Name a colour."
Law: TypeAlias = dict[tuple[int, ...], float]
Counted: TypeAlias = Counter[tuple[int, ...]]


def p_value(counts: Counted, law: Law) -> float:
    """Chance of a chi-square statistic at least this large; cells that expect fewer than 5 are pooled."""
    total = counts.total()
    assert set(counts) <= set(law), "a continuation that plain sampling never gives"
    cells = [(counts[text], total * chance) for text, chance in law.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if small:
        large.append((sum(seen for seen, _ in small), sum(expected for _, expected in small)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in large)
    half = torch.tensor([(len(large) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def plain_law(recall: Recall, prompt: tuple[int, ...]) -> Law:
    """Product of the filtered conditional probabilities."""
    law: Law = {(): 1.0}
    for _ in range(PARAMS.max_tokens):
        deeper: Law = {}
        for text, chance in law.items():
            target = distribution(recall.behind(prompt + text).to(torch.float64), PARAMS)
            weights = target.log_weights.softmax(0).tolist()
            deeper |= {(*text, t): chance * w for t, w in zip(target.tokens.tolist(), weights, strict=True)}
        law = deeper
    return law


def test_p_values_are_those_of_chi_square() -> None:
    law: Law = {(0,): 0.5, (1,): 0.3, (2,): 0.2}
    even: Counted = Counter({(0,): 500, (1,): 300, (2,): 200})
    assert p_value(even, law) == 1.0
    two_degrees: Counted = Counter({(0,): 530, (1,): 280, (2,): 190})
    statistic = 30**2 / 500 + 20**2 / 300 + 10**2 / 200
    assert p_value(two_degrees, law) == pytest.approx(math.exp(-statistic / 2))


@pytest.fixture(scope="module")
def engine() -> NativeEngine:
    job = JobConfig(input=("memory",), kv_memory=2**25, policy="off")
    files = resolve_model("smollm2-135m", report=lambda _: None)
    return open_engine(job, files, open_encoder(job, files.directory))


@pytest.fixture(scope="module")
def recall(engine: NativeEngine) -> Recall:
    return Recall(engine.target.executor)


@pytest.fixture(scope="module")
def prompt(engine: NativeEngine) -> tuple[int, ...]:
    raw = RawPrompt(0, "0" * 32, None, "standard", TASK, PARAMS)
    return engine.encoder.encode(raw).token_ids


def rows_of(prompt: tuple[int, ...], count: int) -> list[Prompt]:
    """Every row has a key, and with it randomness, of its own."""
    return [Prompt(i, f"{i:032x}", None, "standard", prompt, PARAMS) for i in range(count)]


def continuations(executor: RecallExecutor, engine: NativeEngine, rows: Sequence[Prompt]) -> Counted:
    """How often each continuation was the answer of a row."""
    job = JobConfig(
        input=("memory",), policy="eagle", tree_levels=2, tree_width=2, tree_nodes=4, max_rows_in_flight=64
    )
    host = StepClock()
    target = Target(engine.config, engine.target.tokenizer, executor, FlatterDrafter(executor.recall))
    loop = Loop(target, job, PromptFeed(rows, job), host)
    loop.run()
    accounts = [answer.drafts for answer in host.answers.values()]
    assert sum(account.accepted for account in accounts) > len(rows) / 2
    assert sum(account.rejected for account in accounts) > len(rows) / 2
    return Counter(answer.token_ids for answer in host.answers.values())


@pytest.mark.model
def test_speculated_continuations_have_the_law_of_plain_sampling(
    engine: NativeEngine, recall: Recall, prompt: tuple[int, ...]
) -> None:
    executor = RecallExecutor(num_pages=3000, recall=recall)
    counts = continuations(executor, engine, rows_of(prompt, ROWS))
    assert counts.total() == ROWS
    assert p_value(counts, plain_law(recall, prompt)) > 0.01


@pytest.mark.model
def test_a_bias_of_four_percent_is_found(
    engine: NativeEngine, recall: Recall, prompt: tuple[int, ...]
) -> None:
    """Some rows take the greedy continuation, so many that the law is off by a total variation of 0.04."""
    law = plain_law(recall, prompt)
    greedy: tuple[int, ...] = ()
    for _ in range(PARAMS.max_tokens):
        greedy += (int(recall.behind(prompt + greedy).argmax()),)
    share = 0.04 / (1 - law[greedy])
    executor = LenientExecutor(num_pages=3000, recall=recall, share=share)
    counts = continuations(executor, engine, rows_of(prompt, ROWS // 4))
    assert p_value(counts, law) < 1e-4, "a quarter of the rows should be plenty"
