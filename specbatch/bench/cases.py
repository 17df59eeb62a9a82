"""Cases of a workload: which rows there are, and what their promises come to on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from specbatch.bench.workload import Amount, CaseSpec, Mix, Workload
from specbatch.config import JobConfig
from specbatch.errors import ConfigError
from specbatch.rows import Prompt
from specbatch.slo import Slo

ALONE_ROWS = 3
"""Rows that are decoded by themselves where a promise is relative to that."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What plain decoding takes on this machine, measured before anything is compared; medians.

    Attributes:
        tpot_s: Seconds per output token of a row, the case's rows all there from the start.
        ttft_s: Seconds to a row's first token, likewise.
        e2e_s: Seconds to a row's last token, likewise.
        rows_per_s: Rows answered per second, likewise.
        alone_tpot_s: Seconds per output token of a row that has the machine for itself; likewise below.
    """

    tpot_s: float
    ttft_s: float
    e2e_s: float
    rows_per_s: float
    alone_tpot_s: float
    alone_ttft_s: float
    alone_e2e_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that all policies answer.

    Attributes:
        name: For people.
        job: Its limits, seed and tiers; the policy is a contender's.
        rows: As they come, with the promises and arrivals of the input, if any.
        mixes: Of each tier that the workload says something about.
        spec: The case as it was written.
    """

    name: str
    job: JobConfig
    rows: tuple[Prompt, ...]
    mixes: Mapping[str, Mix]
    spec: CaseSpec

    @property
    def relative(self) -> frozenset[str]:
        """Kinds of plain decoding that must be measured: ``batch``, ``alone``."""
        amounts = [each for mix in self.mixes.values() for each in (*mix.promises.values(), mix.after)]
        kinds = {each.of for each in amounts if each is not None and each.of}
        if self.spec.arrivals is not None and self.spec.arrivals.relative:
            kinds.add("batch")
        return frozenset(kinds)

    def first(self, rows: int, max_tokens: int | None = None) -> Case:
        """The first rows alone, promised nothing; each writes so many tokens at most."""
        few = [replace(row, slo=Slo(), arrival=0.0) for row in self.rows[:rows]]
        if max_tokens is not None:
            few = [replace(row, params=replace(row.params, max_tokens=max_tokens)) for row in few]
        return replace(self, rows=tuple(few), mixes={})

    def alone(self) -> list[Case]:
        """The first rows as cases of their own."""
        few = self.first(ALONE_ROWS)
        return [replace(few, rows=(replace(row, row_index=0),)) for row in few.rows]

    def without_promises(self) -> tuple[Prompt, ...]:
        """The rows, all there from the start and promised nothing."""
        return tuple(replace(row, slo=Slo(), arrival=0.0) for row in self.rows)

    def resolved(self, plain: Plain | None) -> tuple[Prompt, ...]:
        """The rows with their promises.

        Args:
            plain: What plain decoding takes; needed where anything is :attr:`relative` to it.
        """
        arrivals = self._arrivals(plain)
        return tuple(
            self._promised(replace(row, arrival=arrival), plain)
            for row, arrival in zip(self.rows, arrivals, strict=True)
        )

    def promises(self, plain: Plain | None) -> dict[str, dict[str, float]]:
        """What each tier is promised, seconds by kind of promise."""
        return {
            tier: {kind: seconds(amount, kind, plain) for kind, amount in mix.promises.items()}
            for tier, mix in self.mixes.items()
        }

    def _promised(self, row: Prompt, plain: Plain | None) -> Prompt:
        mix = self.mixes.get(row.tier)
        if mix is None:
            return row
        if mix.after is not None:
            row = replace(row, arrival=seconds(mix.after, "deadline", plain))
        limits = {kind: seconds(amount, kind, plain) for kind, amount in mix.promises.items()}
        deadline = row.arrival + limits["deadline"] if "deadline" in limits else None
        return replace(row, slo=Slo(deadline, _ms(limits.get("TPOT")), _ms(limits.get("TTFT"))))

    def _arrivals(self, plain: Plain | None) -> list[float]:
        """When each row arrives."""
        arrivals = self.spec.arrivals
        if arrivals is None:
            return [row.arrival for row in self.rows]
        rate = arrivals.per_second(1.0 if plain is None else plain.rows_per_s)
        random = Random(self.job.seed)  # noqa: S311 - arrivals, not secrets
        gaps = (random.expovariate(rate) for _ in self.rows[1:])
        return list(itertools.accumulate(gaps, initial=0.0))


def make_cases(workload: Workload, job: JobConfig, prompts: Sequence[Prompt]) -> list[Case]:
    """The cases of a workload.

    Args:
        workload: How many rows of which kind.
        job: Settings of all cases.
        prompts: What there is to answer, at least one; they come round again when more rows are wanted.

    Raises:
        ConfigError: A tier is none of the job's, or rows do not add up.
    """
    cases = []
    for spec in workload.specs(job.max_rows_in_flight):
        for tier in spec.tiers or {}:
            if tier not in job.tiers:
                raise ConfigError(
                    f"workload.tiers: '{tier}' is not one of {', '.join(job.tiers)}",
                    f"give the job a table [tiers.{tier}] with a priority",
                )
        mixes = spec.tiers or {}
        total = spec.total(len(prompts))
        tiers = spread(mixes, total)
        rows = tuple(_row(prompts[i % len(prompts)], i, tiers[i]) for i in range(total))
        here = job.model_copy(update={"max_rows_in_flight": spec.rows_in_flight})
        cases.append(Case(spec.name or _name(spec), here, rows, mixes, spec))
    return cases


def spread(mixes: Mapping[str, Mix], total: int) -> list[str | None]:
    """A tier for each of ``total`` rows, each kind spread evenly over them; ``None`` keeps a row's own.

    Raises:
        ConfigError: The tiers have more or fewer rows than there are.
    """
    if not mixes:
        return [None] * total
    exact = {name: mix.rows if isinstance(mix.rows, int) else mix.rows * total for name, mix in mixes.items()}
    counts = {name: int(rows + 1e-9) for name, rows in exact.items()}
    by_rest = sorted(exact, key=lambda name: counts[name] - exact[name])
    fractions = sum(exact.values()) - sum(counts.values())
    for name in by_rest[: round(fractions)]:
        counts[name] += 1
    if sum(counts.values()) != total:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigError(
            f"workload: {total} rows in all, but by tier {listed}", "make the numbers or shares add up"
        )
    places = [((k + 0.5) / count, name) for name, count in counts.items() for k in range(count)]
    return [name for _, name in sorted(places)]


def seconds(amount: Amount, kind: str, plain: Plain | None) -> float:
    """What a promise comes to.

    Args:
        amount: Of the promise.
        kind: ``TPOT``, ``TTFT`` or ``deadline``.
        plain: What plain decoding takes; needed for a factor.
    """
    if not amount.of:
        return amount.value
    assert plain is not None, "plain decoding was not measured"
    batch = {"TPOT": plain.tpot_s, "TTFT": plain.ttft_s, "deadline": plain.e2e_s}
    alone = {"TPOT": plain.alone_tpot_s, "TTFT": plain.alone_ttft_s, "deadline": plain.alone_e2e_s}
    return amount.value * (batch if amount.of == "batch" else alone)[kind]


def _row(prompt: Prompt, index: int, tier: str | None) -> Prompt:
    """A row of its own; two rows with one prompt are as different as two occurrences in a table."""
    row = replace(prompt, row_index=index, key=f"{index:032x}")
    return row if tier is None else replace(row, tier=tier)


def _name(spec: CaseSpec) -> str:
    return "1 row in flight" if spec.rows_in_flight == 1 else f"{spec.rows_in_flight} rows in flight"


def _ms(value: float | None) -> float | None:
    return None if value is None else 1e3 * value
