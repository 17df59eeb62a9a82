"""The table model on a machine whose time and power follow formulas that are written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbatch.config import JobConfig
from specbatch.draft.base import Draft, DraftRequest
from specbatch.engine.loop import Loop, Target
from specbatch.ledger import EngineStats
from specbatch.rows import Prompt
from specbatch.step import PassOutput, Step
from tests.engine.drafters import Oracle
from tests.engine.overload import PROFILE, PassClock
from tests.engine.table_model import CONFIG, PromptFeed, TableExecutor, word_tokenizer
from tests.engine.test_speculation import future
from tests.hardware.costs import draft_s, pass_s


@dataclass(frozen=True)
class Powers:
    """Watts that never stop, and joules of a pass, of each token in it, and of each drafted token."""

    idle_w: float = 40.0
    pass_j: float = 0.3
    token_j: float = 0.25
    draft_j: float = 0.02


class PoweredHost(PassClock):
    """Time and energy are those of passes, drafts and pauses.

    Attributes:
        readings: Time and joules after every step.
    """

    def __init__(self, powers: Powers, metered: bool = True) -> None:
        super().__init__()
        self.powers, self.metered = powers, metered
        self.dynamic_j = 0.0
        self.readings: list[tuple[float, float]] = []

    @property
    def energy(self) -> float:
        return self.dynamic_j + self.powers.idle_w * self.time

    def joules(self) -> float | None:
        return self.energy if self.metered else None

    def tick(self, snapshot: object) -> None:
        self.readings.append((self.time, self.energy))


@dataclass
class PoweredExecutor(TableExecutor):
    """Passes take what the profile says, and what the machine needs for it."""

    host: PoweredHost = field(default_factory=lambda: PoweredHost(Powers()))

    def forward(self, step: Step) -> PassOutput:
        host, rows = self.host, len(step.row_starts) - 1
        host.time += pass_s(step.num_tokens, rows, round(float(step.context_len.double().mean())))
        host.dynamic_j += host.powers.pass_j + host.powers.token_j * step.num_tokens
        return super().forward(step)


@dataclass
class PoweredDrafter(Oracle):
    """Drafts take time and energy as well; of each level, the first child is right so often."""

    host: PoweredHost = field(default_factory=lambda: PoweredHost(Powers()))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        levels = max(request.shape.levels for request in requests)
        self.host.time += draft_s(len(requests), 1, levels)
        self.host.dynamic_j += self.host.powers.draft_j * sum(draft.tree.size for draft in drafts)
        return drafts


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    host: PoweredHost
    stats: EngineStats

    @property
    def joules_per_token(self) -> float:
        return self.host.energy / self.stats.output_tokens

    def windows(self, seconds: float = 0.5) -> list[float]:
        """Mean watts of one window after the other, as far as steps end within them."""
        found, (since, before) = [], (0.0, 0.0)
        for time, joules in self.host.readings:
            if time - since >= seconds:
                found.append((joules - before) / (time - since))
                since, before = time, joules
        return found


def run(rows: Sequence[Prompt], job: JobConfig, powers: Powers) -> Outcome:
    """Every row, with the invariants checked after each step; drafts are good for two tokens."""
    host = PoweredHost(powers)
    drafter = PoweredDrafter(future=future, decoys=1, wrong_from=3, host=host, captured=(0,))
    executor = PoweredExecutor(num_pages=600, host=host)
    target = Target(CONFIG, word_tokenizer(), executor, drafter, profile=PROFILE)
    loop = Loop(target, job, PromptFeed(rows, job), host)
    while loop.rows_left():
        loop.step()
        loop.check()
    return Outcome(host, loop.finish())
