"""All policies on one case, in turns, over and over."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbatch.bench.cases import Case, Plain
from specbatch.bench.once import Run, run_once
from specbatch.bench.rig import Rig
from specbatch.energy.meter import EnergyMeter, NoMeter
from specbatch.energy.track import EnergyTrack
from specbatch.rows import Prompt

PLAIN_RUNS = 2
"""Times that plain decoding is measured before promises are made."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rounds:
    """A case and every run of it.

    Attributes:
        plain: What plain decoding took beforehand; ``None`` where no promise asks for it.
        prompts: The rows with their promises.
        rounds: For each repeat a run of every policy.
        meter: Where joules come from, or why there are none.
    """

    case: Case
    plain: Plain | None
    prompts: tuple[Prompt, ...]
    rounds: tuple[dict[str, Run], ...]
    meter: EnergyMeter | NoMeter

    @property
    def policies(self) -> tuple[str, ...]:
        """In the order asked for."""
        return tuple(self.rounds[0])

    def differing_rows(self, policy: str) -> int:
        """Rows whose tokens are not those of the first policy in the first round, in any round."""
        first = self.rounds[0][self.policies[0]].answers
        differing = set()
        for runs in self.rounds:
            for ours, theirs in zip(runs[policy].answers, first, strict=True):
                if ours.succeeded and theirs.succeeded and ours.token_ids != theirs.token_ids:
                    differing.add(ours.row_index)
        return len(differing)


def run_rounds(rig: Rig, case: Case, policies: Sequence[str], repeats: int, report: Report) -> Rounds:
    """Measure a case.

    Args:
        rig: The loaded model.
        case: The rows.
        policies: What is compared, each once.
        repeats: Rounds; each begins with another policy.
        report: Told what is going on.
    """
    _warm_up(rig, case, policies)
    plain = measure_plain(rig, case, report) if case.relative else None
    prompts = case.resolved(plain)
    rounds = []
    for repeat in range(repeats):
        runs = {}
        for policy in turn(policies, repeat):
            report(f"{case.name}: repeat {repeat + 1} of {repeats}, {policy}")
            runs[policy] = _run(rig, case, policy, prompts)
        rounds.append({policy: runs[policy] for policy in policies})
    return Rounds(case, plain, prompts, tuple(rounds), rig.meter)


def turn(policies: Sequence[str], repeat: int) -> list[str]:
    """The order of a round: each policy comes first as often, and no two always follow each other."""
    first = repeat % len(policies)
    order = [*policies[first:], *policies[:first]]
    return order if repeat // len(policies) % 2 == 0 else order[::-1]


def measure_plain(rig: Rig, case: Case, report: Report) -> Plain:
    """Plain decoding of a case's rows, all there from the start and promised nothing."""
    rows = case.without_promises()
    report(f"{case.name}: plain decoding, which promises are relative to")
    batch = [_run(rig, case, "off", rows) for _ in range(PLAIN_RUNS)]
    alone = batch
    if "alone" in case.relative:
        alone = [_run(rig, one, "off", one.rows) for one in case.alone()]
    tpot, ttft, e2e = _latencies(batch)
    alone_tpot, alone_ttft, alone_e2e = _latencies(alone)
    rows_per_s = statistics.median(len(run.answers) / run.seconds for run in batch)
    return Plain(tpot, ttft, e2e, rows_per_s, alone_tpot, alone_ttft, alone_e2e)


def _latencies(runs: Sequence[Run]) -> tuple[float, float, float]:
    """Medians over rows of time per token, to the first token and to the last; medians over runs of these."""
    found = []
    for values in ("tpot_ms", "ttft_s", "e2e_s"):
        per_run = []
        for run in runs:
            known = [getattr(answer, values) for answer in run.answers]
            per_run.append(statistics.median([value for value in known if value is not None] or [0.0]))
        found.append(statistics.median(per_run))
    return found[0] / 1e3, found[1], found[2]


def _warm_up(rig: Rig, case: Case, policies: Sequence[str]) -> None:
    """A few tokens with every policy: memory is touched and code is loaded before anything counts."""
    small = case.first(2, max_tokens=4)
    for policy in policies:
        _run(rig, small, policy, small.rows)


def _run(rig: Rig, case: Case, policy: str, prompts: Sequence[Prompt]) -> Run:
    job = case.job.model_copy(update={"policy": policy})
    energy = None if isinstance(rig.meter, NoMeter) else EnergyTrack(rig.meter, rig.clock.now)
    return run_once(rig.fresh(job), job, prompts, rig.clock, energy)
