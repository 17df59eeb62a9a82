"""Runs on the table model in which passes take the time that the profile says, on a clock of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specbatch.config import JobConfig
from specbatch.draft.base import Drafter
from specbatch.engine.loop import Loop, Target
from specbatch.hardware.points import PrefillPoint
from specbatch.ledger import EngineStats
from specbatch.rows import Answer, Prompt, SamplingParams
from specbatch.slo import Slo
from specbatch.step import PassOutput, Step
from tests.engine.table_model import CONFIG, PromptFeed, StepClock, TableExecutor, word_tokenizer
from tests.engine.test_loop import decode_alone, prompt
from tests.hardware.costs import pass_s, table

TOKEN_S = pass_s(1, 1, 20)
"""Seconds of a step with one row."""


class PassClock(StepClock):
    """A host whose clock is moved by passes only."""

    def __init__(self) -> None:
        super().__init__(0.0)


@dataclass
class TimedExecutor(TableExecutor):
    """The table model; passes take what the profile says."""

    host: PassClock = field(default_factory=PassClock)

    def forward(self, step: Step) -> PassOutput:
        rows = len(step.row_starts) - 1
        context = round(float(step.context_len.double().mean()))
        self.host.time += pass_s(step.num_tokens, rows, context)
        return super().forward(step)


@dataclass
class Observer:
    """What happened, step by step: which rows took part, what was in flight, who waited.

    Attributes:
        moved: Row index → steps in which it took part.
    """

    moved: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    host: PassClock
    stats: EngineStats
    seen: Observer
    feed: PromptFeed

    @property
    def answers(self) -> Mapping[int, Answer]:
        return self.host.answers

    def reasons(self, tier: str) -> list[str | None]:
        """Why rows of a tier missed, in input order."""
        return [a.miss_reason for i, a in sorted(self.answers.items()) if a.tier == tier]


PROFILE = replace(
    table(), prefill=tuple(PrefillPoint(tokens, pass_s(tokens, 1, 20), 3) for tokens in (4, 32, 128))
)
"""As passes take here, prompts included."""

FREE = Slo()
LENGTH = SamplingParams(max_tokens=12)


def row(index: int, tier: str, slo: Slo = FREE, arrival: float = 0.0, **settings: object) -> Prompt:
    """A row of twelve tokens that knows no other end."""
    return prompt(
        index, [index % 29, 3, 5], tier=tier, slo=slo, arrival=arrival, **{"params": LENGTH, **settings}
    )


def run(
    rows: Sequence[Prompt],
    job: JobConfig,
    drafter: Drafter | None = None,
    *,
    profile: bool = True,
    pages: int = 400,
) -> Outcome:
    """Every row, with the invariants checked after each step; texts are compared with plain decoding."""
    host = PassClock()
    executor = TimedExecutor(num_pages=pages, host=host)
    feed = PromptFeed(rows, job)
    target = Target(CONFIG, word_tokenizer(), executor, drafter, profile=PROFILE if profile else None)
    loop = Loop(target, job, feed, host)
    seen = Observer()
    steps = 0
    while loop.rows_left():
        before = {each: each.target_passes for each in loop._scheduler.running}
        loop.step()
        loop.check()
        steps += 1
        for each in {*before, *loop._scheduler.running}:
            if each.target_passes > before.get(each, 0):
                seen.moved.setdefault(each.prompt.row_index, []).append(steps)
        assert steps < 20_000, "the run does not end"
    for index, answer in host.answers.items():
        if answer.succeeded:
            assert answer.token_ids == tuple(decode_alone(feed._by_index[index])), "a text has changed"
    return Outcome(host, loop.finish(), seen, feed)
