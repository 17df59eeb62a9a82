"""A model whose next-token table is known: the whole engine in milliseconds.

Its "keys and values" are the tokens themselves, written to slots. Logits are a hash of all tokens
read back through the page table, so any mistake in paging, sharing, chunking or preemption changes
the text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import tokenizers
import torch
from torch import Tensor

from specbatch.config import JobConfig
from specbatch.draft.base import Drafter
from specbatch.engine.loop import Loop, Target
from specbatch.errors import RowFault
from specbatch.hardware.threads import one_thread
from specbatch.ledger import EngineStats
from specbatch.models.config import ModelConfig
from specbatch.progress import Snapshot
from specbatch.rows import Answer, Demotion, Prompt, Status
from specbatch.sampling import Draw, choose
from specbatch.slo import Slo
from specbatch.step import PassOutput, Step
from specbatch.table.decisions import Entry
from specbatch.text.tokenizer import Tokenizer

VOCAB = 32
EOS = 31
POISON = 30  # a prompt that begins with this token yields NaN


def table_logits(context: Sequence[int]) -> Tensor:
    """Next-token logits after these tokens, float32 ``[VOCAB]``; not to be changed."""
    return _table_logits(tuple(context))


@lru_cache(maxsize=2**14)
def _table_logits(context: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(bytes(context)).digest()[:8], "little") >> 1
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    logits[EOS] -= 1.0
    return torch.full_like(logits, float("nan")) if context[0] == POISON else logits


@dataclass
class TableExecutor:
    """Executor over :func:`table_logits`, and its own store."""

    num_pages: int = 200
    page_size: int = 4
    bytes_per_token: int = 8
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = torch.full((self.num_pages * self.page_size,), -1)

    @property
    def store(self) -> TableExecutor:
        return self

    def forward(self, step: Step) -> PassOutput:
        self.steps.append(step)
        self.slots[step.slots] = step.tokens
        logits = []
        wanted = set(step.wanted.tolist())
        for row, (first, end) in enumerate(itertools.pairwise(step.row_starts)):
            for token in range(first, end):
                if token in wanted:
                    context = self._read(step, row, token)
                    assert len(context) == int(step.positions[token]) + 1, "position and keys disagree"
                    logits.append(self._logits(context))
        return PassOutput(torch.stack(logits) if logits else torch.empty(0, VOCAB))

    def _logits(self, context: list[int]) -> Tensor:
        return table_logits(context)

    def choose(self, logits: Tensor, places: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
        with one_thread():  # waiting for a second one takes longer than all the rest
            return choose(logits[list(places)], draws)

    def scrub(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.slots[page * self.page_size : (page + 1) * self.page_size] = -1

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.slots[list(targets)] = self.slots[list(sources)]

    def _read(self, step: Step, row: int, token: int) -> list[int]:
        extra = step.extra_positions[step.extra_offsets[token] : step.extra_offsets[token + 1]]
        positions = torch.cat([torch.arange(int(step.context_len[token])), extra.long()])
        pages = step.page_table[row, positions // self.page_size]
        tokens: list[int] = self.slots[pages * self.page_size + positions % self.page_size].tolist()
        assert min(tokens) >= 0, "a token was read before it was computed"
        return tokens


def word_tokenizer() -> Tokenizer:
    """Tokens 0 … 31 are the words "a0" … "a31"; the last one is markup."""
    words = {f"a{i}": i for i in range(VOCAB)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([f"a{EOS}"])
    return Tokenizer(backend)


CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=VOCAB,
    max_context=256,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    tie_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    sliding_window=None,
    eos_ids=frozenset({EOS}),
)


class PromptFeed:
    """A feed over prompts in memory; ``None`` stands for a faulty row."""

    def __init__(self, prompts: Sequence[Prompt | None], job: JobConfig) -> None:
        self._prompts = prompts
        known = [p for p in prompts if p is not None]
        by_index = {p.row_index: p for p in known}
        rows = [p.row_index if p is not None else i for i, p in enumerate(prompts)]
        self.rows = np.array(rows, dtype=np.int64)
        picked = [by_index.get(i) for i in rows]
        self.arrival = np.array([p.arrival if p else 0.0 for p in picked])
        deadlines = [p.slo.deadline if p and p.slo.deadline is not None else np.inf for p in picked]
        self.deadline = np.array(deadlines, dtype=np.float64)
        self.priority = np.array([job.tiers[p.tier].priority if p else 0 for p in picked], dtype=np.int16)
        self._by_index, self._job = by_index, job
        tiers = list(job.tiers)
        self.tier = np.array([tiers.index(p.tier) if p else 0 for p in picked], dtype=np.int16)
        firsts = [p.arrival + 1e-3 * p.slo.ttft_ms if p and p.slo.ttft_ms else np.inf for p in picked]
        self.due = np.minimum(self.deadline, np.array(firsts, dtype=np.float64))
        self.used: Mapping[str, int] = {}
        self.fetched: list[int] = []

    def fetch(self, row_index: int, demoted: str | None = None) -> Prompt:
        if row_index not in self._by_index:
            raise RowFault("empty_prompt", "the prompt is empty")
        self.fetched.append(row_index)
        prompt = self._by_index[row_index]
        if demoted is None:
            return prompt
        demotion = Demotion(prompt.tier, demoted)
        return replace(prompt, tier=self._job.default_tier, slo=Slo(), demotion=demotion)


class StepClock:
    """A host whose clock advances by a fixed time per tick."""

    def __init__(self, step_s: float = 1.0, stop_after: int | None = None) -> None:
        self.time, self.step_s, self.stop_after = 0.0, step_s, stop_after
        self.answers: dict[int, Answer] = {}
        self.refused: dict[int, tuple[Status, str]] = {}
        self.snapshots: list[Snapshot] = []
        self.entries: list[Entry] = []

    def now(self) -> float:
        return self.time

    def joules(self) -> float | None:
        return None

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def deliver(self, answer: Answer) -> None:
        assert answer.row_index not in self.answers, "a row was delivered twice"
        self.answers[answer.row_index] = answer

    def refuse(self, row_index: int, status: Status, fault: RowFault) -> None:
        assert row_index not in self.refused, "a row was refused twice"
        self.refused[row_index] = (status, fault.code)

    def note(self, entry: Entry) -> None:
        self.entries.append(entry)

    def tick(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self.time += self.step_s

    def stop_requested(self) -> bool:
        return self.stop_after is not None and len(self.snapshots) >= self.stop_after


def run(
    prompts: Sequence[Prompt | None],
    job: JobConfig,
    executor: TableExecutor,
    host: StepClock,
    drafter: Drafter | None = None,
) -> EngineStats:
    """Run prompts to the end, checking every invariant after each step."""
    loop = Loop(Target(CONFIG, word_tokenizer(), executor, drafter), job, PromptFeed(prompts, job), host)
    while loop.rows_left() and not host.stop_requested():
        loop.step()
        loop.check()
    return loop.finish()
