"""What is attributed to rows adds up to what steps took, in seconds and in joules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.engine.sharing import StepSharing
from specbatch.ledger import EngineStats
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree
from specbatch.verify import Verdict
from specbatch.work import Work
from tests.engine.drafters import Oracle
from tests.engine.table_model import StepClock, TableExecutor, run
from tests.engine.test_loop import job, prompt
from tests.engine.test_speculation import future


def row(index: int) -> Row:
    return Row(Prompt(index, f"{index:032x}", None, "standard", (1,) * 40, SamplingParams()))


def chain(nodes: int) -> TokenTree | None:
    if not nodes:
        return None
    parents = np.arange(-1, nodes, dtype=np.int32)
    return TokenTree(np.arange(nodes + 1), parents, -np.arange(nodes + 1, dtype=np.float64))


@dataclass
class Meter:
    """Time and energy go on as told."""

    time: float = 0.0
    energy: float | None = 0.0

    def now(self) -> float:
        return self.time

    def joules(self) -> float | None:
        return self.energy

    def go(self, seconds: float, watts: float) -> None:
        self.time += seconds
        if self.energy is not None:
            self.energy += seconds * watts


@dataclass(frozen=True)
class Lap:
    """A pause, a step and a look at what came of it.

    Attributes:
        items: Committed, drafted, accepted and proposed tokens of each row.
        drafting: Share of the step.
        passing: Share of what is left of it.
    """

    items: list[tuple[int, int, int, int]]
    gap: float
    length: float
    watts: float
    drafting: float
    passing: float


items = st.tuples(st.integers(1, 30), st.integers(0, 6), st.integers(0, 6), st.integers(0, 9))
seconds, share = st.floats(0.0, 5.0), st.floats(0.0, 1.0)
laps = st.builds(
    Lap, st.lists(items, min_size=1, max_size=5), seconds, seconds, st.floats(0.0, 700.0), share, share
)


@given(st.lists(laps, min_size=1, max_size=8))
def test_shares_and_what_is_nobodys_add_up_to_the_run(script: list[Lap]) -> None:
    meter, stats, rows = Meter(), EngineStats(), [row(i) for i in range(5)]
    sharing, idle_s, idle_j = StepSharing(stats, meter), 0.0, 0.0
    for lap in script:
        meter.go(lap.gap, lap.watts / 2)
        idle_s, idle_j = idle_s + lap.gap, idle_j + lap.gap * lap.watts / 2
        sharing.skip()
        meter.go(lap.length, lap.watts)
        work = [Work(rows[i], count, chain(nodes)) for i, (count, nodes, _, _) in enumerate(lap.items)]
        verdicts = [Verdict(tuple(range(1, 1 + min(nodes, taken))), 1) for _, nodes, taken, _ in lap.items]
        draft_s = lap.length * lap.drafting
        drafted = {rows[i]: proposed for i, (_, _, _, proposed) in enumerate(lap.items)}
        sharing.share(work, verdicts, (lap.length - draft_s) * lap.passing, (draft_s, drafted))
        meter.go(lap.gap, lap.watts)
        sharing.share_observing(work)
    shares = [each.share for each in rows]
    assert math.fsum(share.device_s for share in shares) == pytest.approx(stats.attributed_s, rel=1e-9)
    assert stats.attributed_s + idle_s == pytest.approx(meter.time, rel=1e-9)
    joules = math.fsum(share.joules or 0.0 for share in shares)
    assert joules + idle_j == pytest.approx(meter.energy, rel=1e-9, abs=1e-9)
    for share in shares:
        assert 0.0 <= share.draft_s + share.rejected_s <= share.device_s * (1 + 1e-9)


def test_a_step_is_shared_by_tokens_and_its_drafting_by_drafts() -> None:
    meter, stats, one, two = Meter(), EngineStats(), row(0), row(1)
    sharing = StepSharing(stats, meter)
    meter.go(5.0, 10.0)
    sharing.skip()
    meter.go(2.0, 100.0)
    work = [Work(one, 1, chain(3)), Work(two, 4)]
    sharing.share(work, [Verdict((1,), 7), Verdict((), 7)], 1.0, (0.4, {one: 5}))
    assert one.share.device_s == pytest.approx(1.6 / 2 + 0.4)
    assert two.share.device_s == pytest.approx(1.6 / 2)
    assert (one.share.draft_s, two.share.draft_s) == pytest.approx((0.4, 0.0))
    assert (one.share.rejected_s, two.share.rejected_s) == pytest.approx((1.0 * 2 / 8, 0.0))
    assert (one.share.joules, two.share.joules) == pytest.approx((120.0, 80.0))


class Restless(StepClock):
    """A host for which some time passes whenever it is asked, and some energy with it."""

    def __init__(self, metered: bool) -> None:
        super().__init__(0.01)
        self._random, self._joules, self._metered = Random(3), 0.0, metered

    def now(self) -> float:
        passed = self._random.random()
        self.time += passed
        self._joules += passed * self._random.randrange(20, 300)
        return self.time

    def joules(self) -> float | None:
        return self._joules if self._metered else None


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.booleans())
def test_the_rows_of_a_run_have_all_that_its_steps_took(lengths: list[int], metered: bool) -> None:
    host = Restless(metered)
    drafter = Oracle(future=future, decoys=1, captured=(0,))
    prompts = [prompt(i, [1 + i, 2], params=SamplingParams(max_tokens=n)) for i, n in enumerate(lengths)]
    stats = run(list(prompts), job(policy="eagle", max_rows_in_flight=3), TableExecutor(), host, drafter)
    shares = [answer.share for answer in host.answers.values()]
    assert len(shares) == len(lengths)
    known = [share for share in shares if share is not None]
    assert len(known) == len(shares)
    assert math.fsum(share.device_s for share in known) == pytest.approx(stats.attributed_s, rel=1e-9)
    assert 0.0 < stats.attributed_s < host.time
    assert any(share.draft_s > 0.0 for share in known) == (max(lengths) > 1)
    if metered:
        assert all(share.joules is not None and share.joules > 0.0 for share in known)
    else:
        assert all(share.joules is None for share in known)


def test_a_row_that_never_ran_has_no_share() -> None:
    host = StepClock(step_s=1.0)
    prompts = [prompt(0, [1, 2]), None]
    run(prompts, job(), TableExecutor(), host)
    assert host.answers[0].share is not None
    assert set(host.refused) == {1}
