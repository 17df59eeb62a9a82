"""A loaded model for comparisons: the table model on a clock that only its passes and waiting move."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specbatch.bench.cases import Case, make_cases
from specbatch.bench.rig import Rig
from specbatch.bench.workload import Workload
from specbatch.config import JobConfig
from specbatch.draft.base import Drafter
from specbatch.energy.meter import AssumedWatts, NoMeter
from specbatch.engine.loop import Target
from specbatch.rows import Prompt, SamplingParams
from specbatch.step import PassOutput, Step
from specbatch.text.encoder import PromptEncoder
from tests.engine.table_model import CONFIG, TableExecutor, word_tokenizer
from tests.hardware.costs import pass_s, table

ENDLESS = replace(CONFIG, eos_ids=frozenset())
TOKENS = 12


@dataclass
class Hands:
    """A clock that is moved by hand."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class TimedTable(TableExecutor):
    """The table model; a pass takes as long as the formula of the profile says."""

    hands: Hands = field(default_factory=Hands)
    slowness: float = 1.0

    def forward(self, step: Step) -> PassOutput:
        rows = len(step.row_starts) - 1
        context = round(float(step.context_len[list(step.row_starts[:-1])].double().mean())) - 1
        self.hands.time += self.slowness * pass_s(step.num_tokens, rows, context)
        return super().forward(step)


def rig(
    drafter: Drafter | None = None, slowness: float = 1.0, pages: int = 400, watts: float | None = None
) -> Rig:
    hands = Hands()
    executor = TimedTable(num_pages=pages, hands=hands, slowness=slowness)
    target = Target(ENDLESS, word_tokenizer(), executor, profile=table())
    encoder = PromptEncoder(word_tokenizer(), None, ENDLESS)
    meter = NoMeter("RAPL: no counters here") if watts is None else AssumedWatts(watts, hands.now, 0.0)
    return Rig(target, encoder, {"device": "cpu"}, "", head=drafter, clock=hands, meter=meter)


def prompts(count: int = 20, tokens: int = TOKENS) -> list[Prompt]:
    params = SamplingParams(max_tokens=tokens)
    return [Prompt(i, f"{i:032x}", None, "standard", (1 + i % 20, 2, 3), params) for i in range(count)]


def job(**settings: object) -> JobConfig:
    tiers = {"tight": {"priority": 0}, "medium": {"priority": 10}, "loose": {"priority": 20}}
    return JobConfig.model_validate({"input": ("memory",), "tiers": tiers, **settings})


def cases(
    workload: dict[str, object], count: int = 20, tokens: int = TOKENS, **settings: object
) -> list[Case]:
    return make_cases(Workload.model_validate(workload), job(**settings), prompts(count, tokens))


def quiet(_line: str) -> None:
    """Nobody listens."""
