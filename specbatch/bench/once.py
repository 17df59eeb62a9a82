"""One run of one policy over the rows of a case."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specbatch.config import JobConfig
from specbatch.energy.track import EnergyTrack
from specbatch.engine.loop import Loop, Target
from specbatch.errors import RowFault
from specbatch.hardware.correction import PredictionError
from specbatch.hardware.neighbours import Neighbours
from specbatch.ledger import EngineStats
from specbatch.policy.priority import PriorityPolicy
from specbatch.progress import Snapshot
from specbatch.rows import Answer, Demotion, Prompt, Status
from specbatch.slo import Slo


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Come back when so much time has passed."""
        ...


class WallClock:
    """The time that everybody else has."""

    def now(self) -> float:
        """Seconds of a counter that nobody sets."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Let others work meanwhile."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """What one policy made of the rows once.

    Attributes:
        policy: As in the settings.
        seconds: From the start to the last answer.
        idle_s: Of these, waiting for rows to arrive.
        answers: By row.
        step_ends: When each step ended, seconds after the start.
        stats: Totals of the engine.
        pass_error: How far predicted target passes were from real ones; ``None`` without a profile.
        draft_error: Likewise of drafts.
        others_share: Share of the machine's CPU time that other processes took; ``None``: not known.
        joules: What it took; ``None`` where nothing is measured.
    """

    policy: str
    seconds: float
    idle_s: float
    answers: tuple[Answer, ...]
    step_ends: tuple[float, ...]
    stats: EngineStats
    pass_error: PredictionError | None
    draft_error: PredictionError | None
    others_share: float | None
    joules: float | None = None


class PromptFeed:
    """Implements :class:`specbatch.engine.feed.Feed` over prompts in memory.

    Args:
        prompts: Row indices 0, 1, ….
        job: Its tiers.
    """

    def __init__(self, prompts: Sequence[Prompt], job: JobConfig) -> None:
        self._prompts, self._job = prompts, job
        tiers = list(job.tiers)
        deadlines = [np.inf if each.slo.deadline is None else each.slo.deadline for each in prompts]
        self.rows: NDArray[np.int64] = np.arange(len(prompts), dtype=np.int64)
        self.arrival: NDArray[np.float64] = np.array([each.arrival for each in prompts], np.float64)
        self.deadline: NDArray[np.float64] = np.array(deadlines, np.float64)
        ttft = [np.inf if each.slo.ttft_ms is None else 1e-3 * each.slo.ttft_ms for each in prompts]
        self.due: NDArray[np.float64] = np.minimum(self.deadline, self.arrival + np.array(ttft, np.float64))
        ranks = [job.tiers[each.tier].priority for each in prompts]
        self.priority: NDArray[np.int16] = np.array(ranks, np.int16)
        self.tier: NDArray[np.int16] = np.array([tiers.index(each.tier) for each in prompts], np.int16)
        self.used: Mapping[str, int] = {}

    def fetch(self, row_index: int, demoted: str | None = None) -> Prompt:
        """One prompt, under the default tier when it may not have its own."""
        prompt = self._prompts[row_index]
        if demoted is None:
            return prompt
        return replace(prompt, tier=self._job.default_tier, demotion=Demotion(prompt.tier, demoted))


@dataclass(slots=True)
class BenchHost:
    """Implements :class:`specbatch.engine.feed.Host`: keeps the answers.

    Attributes:
        prompts: By row index.
        clock: Where the time comes from.
        energy: Where joules come from; ``None`` where nothing is measured.
    """

    prompts: Sequence[Prompt]
    clock: Clock
    energy: EnergyTrack | None = None
    answers: dict[int, Answer] = field(default_factory=dict)
    idle_s: float = 0.0
    step_ends: list[float] = field(default_factory=list)
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock.now()

    def now(self) -> float:
        """Seconds since the run started."""
        return self.clock.now() - self.start

    def joules(self) -> float | None:
        """Since the run started; ``None`` where nothing is measured, or nothing any more."""
        return None if self.energy is None else self.energy.joules()

    def sleep(self, seconds: float) -> None:
        """Until the next row arrives."""
        before = self.clock.now()
        self.clock.sleep(seconds)
        self.idle_s += self.clock.now() - before

    def deliver(self, answer: Answer) -> None:
        """Keep an answer."""
        self.answers[answer.row_index] = answer

    def refuse(self, row_index: int, status: Status, fault: RowFault) -> None:
        """Keep a row that ended without one."""
        row = self.prompts[row_index]
        self.deliver(
            Answer(
                row_index,
                row.key,
                row.id,
                row.tier,
                status,
                error_code=fault.code,
                error_message=fault.message,
                slo=row.slo,
                arrival=row.arrival,
                finished_at=self.now(),
            )
        )

    def note(self, entry: object) -> None:
        """Decisions are summed up in the totals of the engine."""

    def tick(self, snapshot: Snapshot) -> None:
        """A step ended; progress is shown run by run."""
        self.step_ends.append(self.now())

    def stop_requested(self) -> bool:
        """A signal ends the command itself."""
        return False


def run_once(
    target: Target,
    job: JobConfig,
    prompts: Sequence[Prompt],
    clock: Clock,
    energy: EnergyTrack | None = None,
) -> Run:
    """Answer all rows.

    Strict priority is not told of promises: servers that offer it know none, and order by nothing else.

    Args:
        target: With a drafter that has seen nothing, and a profile if the policy counts with one.
        job: With the policy.
        prompts: The rows.
        clock: Where the time comes from.
        energy: Where joules come from; ``None`` where nothing is measured.
    """
    known = prompts
    if job.policy == PriorityPolicy.name:
        known = [replace(row, slo=Slo()) for row in prompts]
    feed = PromptFeed(known, job)
    host = BenchHost(prompts, clock, energy)
    loop, neighbours = Loop(target, job, feed, host), Neighbours()
    if energy is not None:
        energy.restart()
    stats = loop.run()
    seconds = host.now()
    costs = loop.costs
    return Run(
        policy=job.policy,
        seconds=seconds,
        idle_s=host.idle_s,
        answers=tuple(host.answers[i] for i in range(len(prompts))),
        step_ends=tuple(host.step_ends),
        stats=stats,
        pass_error=None if costs is None else costs.verify.error,
        draft_error=None if costs is None else costs.draft.error,
        others_share=neighbours.share(),
        joules=None if energy is None else energy.total(),
    )
