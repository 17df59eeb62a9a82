"""Scheduling: prefill within its budget, decode never starved, the urgent preempt the rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.pages import PagePool
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.schedule.scheduler import Limits, Scheduler
from specbatch.slo import Slo
from specbatch.work import PIECE

PRIORITY = {"urgent": 0, "batch": 9}


def row(index: int, tokens: int, tier: str = "batch", deadline: float | None = None) -> Row:
    ids = tuple(range(100 * index, 100 * index + tokens))
    return Row(Prompt(index, str(index), None, tier, ids, SamplingParams(max_tokens=8), Slo(deadline)))


def scheduler(pages: int = 100, max_rows: int = 8, chunk: int = 16) -> Scheduler:
    return Scheduler(PagePool(pages + 1, 4, sharing=True), Limits(max_rows, chunk), PRIORITY.__getitem__)


def advance(s: Scheduler, now: float = 0.0) -> dict[int, int]:
    """One step in which every due row gets a token; returns row index → tokens computed."""
    work = s.plan(now)
    for item in work:
        due = item.yields_token
        s.commit(item)
        if due:
            item.row.output.append(7)
    s.check()
    return {item.row.prompt.row_index: item.count for item in work}


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_rows() -> None:
    s = scheduler(chunk=10)
    s.start(row(0, 3))
    assert advance(s) == {0: 3}
    s.start(row(1, 25))
    assert advance(s) == {0: 1, 1: 10}
    assert advance(s) == {0: 1, 1: 10}
    assert advance(s) == {0: 1, 1: 5}
    assert advance(s) == {0: 1, 1: 1}


def test_the_prefill_budget_is_shared_by_urgency() -> None:
    s = scheduler(chunk=10)
    for r in (row(0, 8), row(1, 8, "urgent"), row(2, 8, deadline=100.0)):
        s.start(r)
    assert advance(s) == {2: 8, 1: 2}
    assert advance(s) == {2: 1, 1: 6, 0: 4}


def test_a_row_that_has_stood_still_takes_part_and_what_was_cut_down_stays_so() -> None:
    s = scheduler(chunk=10)
    s.limits = replace(s.limits, min_progress=lambda _: 2)
    for r in (row(0, 8), row(1, 8)):
        s.start(r)
    plan = s.plan(0.0)
    part = [replace(plan[0], count=3)]
    assert [item.count for item in s.keep_moving(plan, part)] == [3]
    assert [item.count for item in s.keep_moving(plan, part)] == [3, plan[1].count]


def test_the_least_urgent_row_gives_its_pages_to_the_most_urgent() -> None:
    s = scheduler(pages=5, chunk=64)
    low, high = row(0, 8), row(1, 8, "urgent")
    for r in (low, high):
        s.start(r)
    steps = 0
    while not s.parked:
        advance(s)
        steps += 1
        assert steps < 20
    assert s.parked == [low]
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)
    assert low.cached == 0
    assert len(low.output) > 0


def test_a_preempted_row_counts_what_it_computes_again() -> None:
    s = scheduler(pages=5, chunk=64)
    low, high = row(0, 8), row(1, 8, "urgent")
    for r in (low, high):
        s.start(r)
    while not s.parked:
        advance(s)
    cached_before = low.high_water
    s.remove(high)
    s.start(low)
    resumed_at = low.cached
    assert resumed_at < low.committed
    while low.cached < cached_before:
        advance(s)
    assert low.recomputed_tokens == cached_before - resumed_at


def test_a_row_waits_while_promised_pages_would_not_be_there() -> None:
    s = scheduler(pages=4, chunk=64)
    s.start(row(0, 11))
    assert not s.has_room_for(row(1, 4))
    assert s.has_room_for(row(2, 3))


def test_equal_prompts_share_pages_and_skip_their_computation() -> None:
    s = scheduler()
    first = row(0, 12)
    s.start(first)
    advance(s)
    twin = Row(Prompt(5, "5", None, "batch", first.prompt.token_ids, SamplingParams()))
    s.start(twin)
    assert twin.pages == first.pages[:2]
    assert twin.cached == 8
    s.check()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["urgent", "batch"])), min_size=1, max_size=10),
    st.integers(8, 20),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_every_row_finishes_and_the_pool_ends_empty(
    prompts: list[tuple[int, str]], pages: int, chunk: int, max_rows: int
) -> None:
    s = scheduler(pages, max_rows, chunk)
    for i, (tokens, tier) in enumerate(prompts):
        s.park(row(i, tokens, tier))
    finished = []
    for _ in range(2000):
        while (
            head := min(s.parked, key=lambda row: s.urgency(row, 0.0), default=None)
        ) is not None and s.has_room_for(head):
            s.start(head)
        assert s.running, "the queue is stuck"
        computed = advance(s)
        assert computed, "a step did nothing"
        assert sum(n for n in computed.values() if n > 1) <= chunk
        for done in [r for r in s.running if len(r.output) >= 8]:
            s.remove(done)
            finished.append(done.prompt.row_index)
        if len(finished) == len(prompts):
            break
    assert sorted(finished) == list(range(len(prompts)))
    assert s.pool.in_use == 0


def test_rows_that_are_due_together_get_on_by_a_piece_together() -> None:
    s = scheduler(pages=3000, max_rows=9, chunk=128)
    s.limits = replace(s.limits, min_progress=lambda _: 3)
    for index in range(9):
        s.start(row(index, 1000))
    counts = []
    for _ in range(3):
        plan = s.plan(0.0)
        work = s.keep_moving(plan, [item for item in plan if item.row.prompt.row_index == 0])
        counts.append({item.row.prompt.row_index: item.count for item in work})
        for item in work:
            s.commit(item)
    # The first row is what a policy chose; the others may not stand still for more than two steps.
    assert counts[:2] == [{0: 128}, {0: 128}]
    assert counts[2] == dict.fromkeys(range(1, 9), PIECE // 8)
