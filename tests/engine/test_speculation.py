"""Speculation on a known table: the text is that of plain decoding, and every token has a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft.base import DraftRequest
from specbatch.draft.suffix import SuffixDrafter
from specbatch.rows import Answer, FinishReason, Prompt, SamplingParams, Status
from specbatch.sampling import Draw, choose_one
from tests.engine.drafters import Broken, Crashing, Nonsense, Oracle, TestDrafter
from tests.engine.table_model import EOS, POISON, StepClock, TableExecutor, run, table_logits
from tests.engine.test_loop import decode_alone, job, params, prompt


def future(request: DraftRequest, count: int) -> list[int]:
    """What the table and the row's noise will lead to."""
    row = request.row
    tokens = row.tokens(0, row.committed)
    chosen = row.prompt.params
    for _ in range(count):
        history = tuple(sorted(set(tokens))) if chosen.repetition_penalty != 1.0 else ()
        tokens.append(choose_one(table_logits(tokens), Draw(chosen, request.stream, len(tokens), history)))
    return tokens[row.committed :]


DRAFTERS: dict[str, Callable[[], TestDrafter]] = {
    "silent": TestDrafter,
    "oracle": lambda: Oracle(future=future),
    "half right": lambda: Oracle(future=future, wrong_from=3, decoys=1),
    "oracle among decoys": lambda: Oracle(future=future, decoys=2),
    "nonsense": Nonsense,
    "tokens beyond the vocabulary": lambda: Nonsense(vocab=40),
    "crashing": lambda: Crashing(future=future),
    "broken": Broken,
}
POLICIES = [f"fixed:{gamma}" for gamma in range(1, 9)] + ["eagle"]
USELESS = ("silent", "tokens beyond the vocabulary", "crashing", "broken")
"""They propose little or nothing that can be verified, whatever the policy asks for."""


def answers(
    prompts: list[Prompt], drafter: TestDrafter | None, executor: TableExecutor, **settings: object
) -> dict[int, Answer]:
    host = StepClock()
    run(list(prompts), job(**settings), executor, host, drafter)
    for answer in host.answers.values():
        check_account(answer)
    return host.answers


def check_account(answer: Answer) -> None:
    """The identities of a row that ended."""
    drafts = answer.drafts
    drafts.check()
    assert drafts.pruned == 0
    if answer.succeeded:
        assert answer.output_tokens == drafts.accepted + drafts.verifications + 1 - drafts.trimmed
        assert sum(drafts.accept_histogram) == drafts.verifications
        assert answer.target_passes >= drafts.verifications + 1
    if not drafts.verified:
        assert drafts.rejected_flops == 0


MIXED = [
    prompt(0, [1, 2, 3], params=SamplingParams(max_tokens=17)),
    prompt(1, [1, 2, 3, 4, 5, 6, 7], params=SamplingParams(max_tokens=9, temperature=1.0)),
    prompt(2, [2], params=SamplingParams(max_tokens=14, temperature=0.8, top_k=5, top_p=0.8)),
    prompt(3, [1, 2, 3], params=SamplingParams(max_tokens=12, repetition_penalty=1.4)),
    prompt(4, [9, 8, 1], params=SamplingParams(max_tokens=13, temperature=1.3, repetition_penalty=0.7)),
    prompt(5, [7, 7], params=SamplingParams(max_tokens=1)),
    prompt(6, [7, 9], params=SamplingParams(max_tokens=2, temperature=1.0)),
]


MANY = [
    replace(p, row_index=i, key=f"key{i}", params=replace(p.params, max_tokens=min(5, p.params.max_tokens)))
    for i, p in enumerate(MIXED[i % 7] for i in range(32))
]


@pytest.fixture(scope="module")
def plain() -> dict[int, list[tuple[int, ...]]]:
    """Number of rows → their texts."""
    return {len(some): [tuple(decode_alone(p)) for p in some] for some in (MIXED, MANY)}


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, policy) for name in DRAFTERS for policy in POLICIES[:: 4 if name in USELESS else 1]],
)
def test_tokens_equal_plain_decoding(name: str, policy: str, plain: dict[int, list[tuple[int, ...]]]) -> None:
    for rows, some in ((1, MIXED[:5]), (4, MIXED), (32, MANY)):
        found = answers(some, DRAFTERS[name](), TableExecutor(), policy=policy, max_rows_in_flight=rows)
        assert [found[p.row_index].token_ids for p in some] == plain[len(MIXED if rows < 32 else MANY)][
            : len(some)
        ]


rows = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=20), params), min_size=1, max_size=7
)


@settings(max_examples=50, deadline=None)
@given(
    rows,
    st.sampled_from(sorted(DRAFTERS)),
    st.sampled_from(POLICIES),
    st.tuples(st.integers(1, 6), st.integers(1, 30), st.integers(11, 60), st.sampled_from([1, 7, 512])),
    st.booleans(),
    st.sampled_from([1, 3, 4]),
)
def test_no_limit_or_order_changes_the_text(
    spec: list[tuple[list[int], SamplingParams]],
    name: str,
    policy: str,
    limits: tuple[int, int, int, int],
    sharing: bool,
    page_size: int,
) -> None:
    prompts = [prompt(i, tokens, params=p) for i, (tokens, p) in enumerate(spec)]
    max_rows, chunk, memory, budget = limits
    executor = TableExecutor(num_pages=(40 + memory) // page_size + 2, page_size=page_size)
    found = answers(
        prompts,
        DRAFTERS[name](),
        executor,
        policy=policy,
        max_rows_in_flight=max_rows,
        prefill_chunk=chunk,
        prefix_sharing=sharing,
        draft_budget=budget,
    )
    assert {i: a.token_ids for i, a in found.items()} == {
        p.row_index: tuple(decode_alone(p)) for p in prompts
    }
    drafted = [int((step.row_starts[-1]) - len(step.row_starts) + 1) for step in executor.steps]
    assert all(count <= max(budget, chunk) + budget for count in drafted)


def test_an_oracle_saves_passes_and_every_token_is_accounted_for() -> None:
    alone = prompt(0, [1, 2, 3], params=SamplingParams(max_tokens=16))
    plain = answers([alone], None, TableExecutor())[0]
    quick = answers([alone], DRAFTERS["oracle"](), TableExecutor(), policy="fixed:4")[0]
    assert plain.token_ids == quick.token_ids
    assert plain.target_passes == 16
    assert quick.target_passes == 1 + 3
    drafts = quick.drafts
    assert drafts.accept_histogram == [0, 0, 0, 0, 3]
    assert (drafts.drafted, drafts.accepted, drafts.verifications) == (12, 12, 3)
    assert (drafts.draft_passes, drafts.draft_flops, drafts.rejected_flops) == (12, 30.0, 0.0)
    assert plain.drafts.accept_histogram == [15]
    assert plain.drafts.drafted == 0


def test_rejected_flops_are_the_share_of_the_rejected_tokens() -> None:
    alone = prompt(0, [1, 2, 3], params=SamplingParams(max_tokens=16))
    plain = answers([alone], None, TableExecutor())[0]
    wrong = answers(
        [alone], Oracle(future=future, wrong_from=1, decoys=1), TableExecutor(), policy="fixed:1"
    )[0]
    assert wrong.drafts.accepted == 0
    assert wrong.drafts.rejected == wrong.drafts.verified > 0
    assert wrong.verify_flops == pytest.approx(plain.verify_flops + wrong.drafts.rejected_flops)
    mixed = answers([alone], Oracle(future=future, decoys=2), TableExecutor(), policy="eagle")[0]
    assert mixed.drafts.accepted > 0
    assert mixed.drafts.rejected == 2 * mixed.drafts.accepted
    assert mixed.verify_flops == pytest.approx(plain.verify_flops + mixed.drafts.rejected_flops)


def test_what_a_policy_leaves_out_is_unselected() -> None:
    alone = prompt(0, [1, 2, 3], params=SamplingParams(max_tokens=16))
    found = answers([alone], Oracle(future=future, decoys=2), TableExecutor(), policy="fixed:4")[0]
    assert found.drafts.unselected == 2 * found.drafts.selected > 0
    assert found.drafts.rejected == 0


def test_a_stop_inside_an_accepted_run_beats_the_length_limit() -> None:
    plain = decode_alone(prompt(0, [1], params=SamplingParams(max_tokens=9)))
    word = f"a{plain[3]}"
    assert plain.index(plain[3]) == 3
    for limit in (4, 12):
        stopping = prompt(0, [1], params=SamplingParams(max_tokens=limit, stop=(word,)))
        answer = answers([stopping], DRAFTERS["oracle"](), TableExecutor(), policy="fixed:8")[0]
        assert answer.token_ids == tuple(plain[:4])
        assert answer.finish_reason is FinishReason.STOP
        assert answer.text is not None
        assert answer.text.split() == [f"a{t}" for t in plain[:3]]
    assert answer.drafts.trimmed == answer.drafts.accepted + answer.drafts.verifications + 1 - 4 > 0


def test_end_of_sequence_inside_an_accepted_run_ends_the_row() -> None:
    candidates = [prompt(i, [i % 30, i // 30], params=SamplingParams(max_tokens=200)) for i in range(12)]
    ending = next(p for p in candidates if decode_alone(p)[-1] == EOS and len(decode_alone(p)) > 2)
    for policy in ("fixed:8", "eagle"):
        answer = answers([ending], DRAFTERS["oracle"](), TableExecutor(), policy=policy)[ending.row_index]
        assert (answer.status, answer.finish_reason) == (Status.OK, FinishReason.STOP)
        assert answer.token_ids == tuple(decode_alone(ending))


def test_a_row_is_never_drafted_beyond_its_limit_or_its_own_cap() -> None:
    prompts = [prompt(i, [1, 2, i], max_draft_tokens=cap) for i, cap in enumerate((0, 2, None))]
    executor = TableExecutor()
    found = answers(prompts, DRAFTERS["oracle"](), executor, policy="fixed:6", max_rows_in_flight=1)
    assert [max(0, len(found[i].drafts.accept_histogram) - 1) for i in range(3)] == [0, 2, 6]
    assert all(a.drafts.trimmed == 0 for a in found.values() if a.token_ids[-1] != EOS)
    longest = max(int(step.positions.max()) for step in executor.steps)
    assert longest < 3 + 12 - 1


def test_drafted_tokens_preempt_nobody_and_take_what_is_free() -> None:
    prompts = [prompt(i, [1, 2, 3, i], params=SamplingParams(max_tokens=12)) for i in range(3)]
    drafter = Nonsense()
    for pages in (13, 16, 40):
        host = StepClock()
        stats = run(list(prompts), job(policy="eagle"), TableExecutor(pages, 4), host, drafter)
        assert stats.preemptions == 0
        assert {i: a.token_ids for i, a in host.answers.items()} == {
            p.row_index: tuple(decode_alone(p)) for p in prompts
        }
        assert stats.drafts.unselected > 0
        assert 0 < stats.draft_pages_peak <= stats.kv_pages_peak <= pages - 1


def test_numbers_that_are_none_behind_an_accepted_token_end_the_row_as_in_plain_decoding() -> None:
    class Fragile(TableExecutor):
        def _logits(self, context: list[int]) -> torch.Tensor:
            logits = super()._logits(context)
            return torch.full_like(logits, float("nan")) if len(context) >= 6 else logits

    for limit, status in ((3, Status.TRUNCATED), (12, Status.ERROR)):
        p = prompt(0, [1, 2, 3], params=SamplingParams(max_tokens=limit))
        q = prompt(1, [4, 4], params=SamplingParams(max_tokens=3))
        plain = answers([p, q], None, Fragile())
        quick = answers([p, q], DRAFTERS["oracle"](), Fragile(), policy="fixed:5")
        for i in (0, 1):
            assert (quick[i].status, quick[i].token_ids) == (plain[i].status, plain[i].token_ids)
        assert quick[0].status is status
        assert quick[0].error_code == (None if limit == 3 else "nan_logits")


def test_a_poisoned_row_beside_drafting_ones_changes_nothing() -> None:
    prompts = [prompt(0, [1]), prompt(2, [POISON, 3]), prompt(3, [2, 2])]
    found = answers(prompts, DRAFTERS["oracle"](), TableExecutor(), policy="fixed:3")
    assert found[2].error_code == "nan_logits"
    assert [found[i].token_ids for i in (0, 3)] == [tuple(decode_alone(prompts[i])) for i in (0, 2)]


def test_a_failing_drafter_is_named_and_left_alone() -> None:
    prompts = [prompt(i, [1, i]) for i in range(4)]
    host = StepClock()
    stats = run(list(prompts), job(policy="fixed:3"), TableExecutor(), host, Crashing(every=1))
    assert stats.draft_faults >= 3
    assert "RuntimeError: out of ideas" in stats.draft_fault
    assert stats.drafts.drafted == 0
    host = StepClock()
    stats = run(list(prompts), job(policy="fixed:3"), TableExecutor(), host, DRAFTERS["oracle"]())
    assert (stats.draft_faults, stats.draft_fault) == (0, "")


def test_totals_are_the_sums_over_rows() -> None:
    host = StepClock()
    stats = run(list(MIXED), job(policy="eagle"), TableExecutor(), host, Oracle(future=future, decoys=1))
    accounts = [answer.drafts for answer in host.answers.values()]
    totals = stats.as_dict()
    for name in ("drafted", "unselected", "selected", "verified", "accepted", "rejected", "trimmed"):
        assert totals[name] == sum(getattr(account, name) for account in accounts)
    for name in ("draft_flops", "rejected_flops", "verifications", "draft_passes"):
        assert totals[name] == pytest.approx(sum(getattr(account, name) for account in accounts))
    assert stats.output_tokens == sum(a.output_tokens for a in host.answers.values())
    assert stats.steps < stats.row_passes == sum(a.target_passes for a in host.answers.values())


def test_a_second_run_drafts_what_the_first_one_did() -> None:
    """Nothing of the texts of a run is left in the drafter of a loaded engine."""
    drafter, prompts = SuffixDrafter(), [prompt(i, [1, 2, i % 3]) for i in range(12)]
    first, second = (
        run(list(prompts), job(policy="fixed:3", max_rows_in_flight=2), TableExecutor(), StepClock(), drafter)
        for _ in range(2)
    )
    assert first.drafts.accepted > 0
    assert first.drafts == second.drafts
