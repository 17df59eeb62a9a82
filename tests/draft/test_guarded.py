"""A drafter that fails costs speed and nothing else, and the report can name it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft.base import Draft, DraftRequest, Observed
from specbatch.draft.guarded import MAX_FAULTS_IN_A_ROW, GuardedDrafter
from specbatch.errors import ExitCode, Interrupted
from specbatch.rows import Row
from specbatch.tree import TokenTree
from tests.draft.rows_in_hand import ask, make_row

VOCAB = 50


def chain(request: DraftRequest) -> Draft:
    row = request.row
    return Draft(TokenTree.chain(row.token(row.committed - 1), [7, 8], [-0.1, -0.2]), 2, 10.0)


def chains(requests: Sequence[DraftRequest]) -> list[Draft]:
    return [chain(request) for request in requests]


def fail(message: str = "boom") -> None:
    raise RuntimeError(message)


@dataclass
class Planted:
    """A drafter whose calls do what a test plants."""

    on_propose: Callable[[Sequence[DraftRequest]], list[Draft]] = lambda requests: [
        chain(r) for r in requests
    ]
    on_begin: Callable[[], None] = lambda: None
    on_observe: Callable[[], None] = lambda: None
    on_forget: Callable[[], None] = lambda: None
    name: str = "planted"
    captured: tuple[int, ...] = (1, 2)
    calls: int = 0

    def begin(self) -> None:
        self.on_begin()

    def observe(self, observed: Sequence[Observed]) -> None:
        self.calls += 1
        self.on_observe()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.calls += 1
        return self.on_propose(requests)

    def forget(self, row: Row) -> None:
        self.calls += 1
        self.on_forget()


def requests(count: int = 2) -> list[DraftRequest]:
    return [ask(make_row([1, 2, 3], [4 + i], i)) for i in range(count)]


def tree(tokens: list[int], parents: list[int], log_probs: list[float]) -> TokenTree:
    return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(log_probs))


def test_good_drafts_pass_unchanged() -> None:
    asked = requests()
    guarded = GuardedDrafter(Planted(), VOCAB)
    assert guarded.propose(asked) == [chain(request) for request in asked]
    assert (guarded.name, guarded.captured, guarded.notice, guarded.faults) == ("planted", (1, 2), "", {})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (tree([4, 7], [-1, 0], [0.0, math.nan]), "not a number"),
        (tree([4, 7], [-1, 0], [0.0, 0.5]), "above 0"),
        (tree([4, 7, 7], [-1, 0, 0], [0.0, -1.0, -1.0]), "same token"),
        (tree([4, 7, 8], [-1, 2, 0], [0.0, -1.0, -1.0]), "parent stands before"),
        (tree([4, 7, 8], [-1, 0], [0.0, -1.0, -1.0]), "as many parents"),
        (tree([4, VOCAB], [-1, 0], [0.0, -1.0]), "beyond the vocabulary of 50"),
        (tree([4, -7], [-1, 0], [0.0, -1.0]), "negative"),
        (tree([9, 7], [-1, 0], [0.0, -1.0]), "the root is token 9, the row ends with 4"),
        (TokenTree(np.array([4.0]), np.array([-1]), np.array([0.0])), "tokens of type float64"),
    ],
)
def test_a_malformed_tree_leaves_its_row_without_a_draft(bad: TokenTree, reason: str) -> None:
    asked = requests()
    planted = Planted(lambda _: [Draft(bad), chain(asked[1])])
    guarded = GuardedDrafter(planted, VOCAB)
    first, second = guarded.propose(asked)
    assert first == Draft(TokenTree.root(4))
    assert second == chain(asked[1])
    assert guarded.faults == {"propose: malformed draft": 1}
    assert reason in guarded.notice
    assert guarded.notice.startswith("drafter 'planted' failed once; the first time: ")


@pytest.mark.parametrize(("passes", "flops"), [(-1, 0.0), (1, math.nan), (1, -1.0), (1, math.inf)])
def test_costs_that_are_no_numbers_are_no_draft(passes: int, flops: float) -> None:
    asked = requests(1)
    good = chain(asked[0])
    guarded = GuardedDrafter(Planted(lambda _: [Draft(good.tree, passes, flops)]), VOCAB)
    assert guarded.propose(asked) == [Draft(TokenTree.root(4))]


@pytest.mark.parametrize("drafts", [[], None, 3, ["a", "b"], [None, None]])
def test_what_is_no_list_of_drafts_is_no_proposal(drafts: object) -> None:
    planted = Planted(lambda _: drafts)  # type: ignore[arg-type, return-value]
    guarded = GuardedDrafter(planted, VOCAB)
    assert [draft.tree.size for draft in guarded.propose(requests())] == [0, 0]
    assert sum(guarded.faults.values()) >= 1


def test_a_crash_is_counted_and_its_first_message_is_kept() -> None:
    messages = iter(["first\n  trouble", "second", "third"])
    guarded = GuardedDrafter(Planted(lambda _: fail(next(messages))), VOCAB, limit=5)  # type: ignore[return-value, arg-type]
    for _ in range(3):
        assert [draft.tree.size for draft in guarded.propose(requests())] == [0, 0]
    assert guarded.faults == {"propose: RuntimeError": 3}
    notice = "drafter 'planted' failed 3 times; the first time: propose: RuntimeError: first trouble"
    assert guarded.notice == notice


def test_a_drafter_that_cannot_begin_costs_speed_alone() -> None:
    guarded = GuardedDrafter(Planted(on_begin=fail), VOCAB)
    guarded.begin()
    assert guarded.faults == {"begin: RuntimeError": 1}
    assert [draft.tree.size for draft in guarded.propose(requests())] == [2, 2]


def test_after_several_failures_in_a_row_the_drafter_is_left_alone() -> None:
    planted = Planted(lambda _: fail())  # type: ignore[return-value, arg-type]
    guarded = GuardedDrafter(planted, VOCAB)
    for step in range(1, MAX_FAULTS_IN_A_ROW + 1):
        assert not guarded.switched_off
        guarded.propose(requests())
        assert planted.calls == step
    assert guarded.switched_off
    guarded.observe([])
    guarded.forget(make_row([1]))
    assert [draft.tree.size for draft in guarded.propose(requests())] == [0, 0]
    assert planted.calls == MAX_FAULTS_IN_A_ROW
    assert "was switched off after 3 failures in a row" in guarded.notice


def test_a_good_step_in_between_keeps_it_running() -> None:
    steps = iter(range(100))

    def sometimes(asked: Sequence[DraftRequest]) -> list[Draft]:
        if next(steps) % 3:
            fail()
        return [chain(request) for request in asked]

    guarded = GuardedDrafter(Planted(sometimes), VOCAB)
    for _ in range(30):
        guarded.propose(requests())
    assert not guarded.switched_off
    assert guarded.faults == {"propose: RuntimeError": 20}


@pytest.mark.parametrize("call", ["observe", "forget"])
def test_failures_between_proposals_count_as_failures_in_a_row(call: str) -> None:
    guarded = GuardedDrafter(Planted(**{f"on_{call}": fail}), VOCAB)  # type: ignore[arg-type]
    for _ in range(10):
        guarded.propose(requests())
        guarded.observe([])
        guarded.forget(make_row([1]))
    assert guarded.faults == {f"{call}: RuntimeError": MAX_FAULTS_IN_A_ROW}
    assert guarded.switched_off


@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), SystemExit(), GeneratorExit(), Interrupted("stopped", ExitCode.SIGINT)],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_fault_of_the_drafter_passes(interrupt: BaseException) -> None:
    def stop(_: Sequence[DraftRequest]) -> list[Draft]:
        raise interrupt

    guarded = GuardedDrafter(Planted(stop), VOCAB)
    with pytest.raises(type(interrupt)) as caught:
        guarded.propose(requests())
    assert caught.value is interrupt
    assert guarded.faults == {}


def test_faults_that_a_drafter_counts_itself_are_faults() -> None:
    class Honest(Planted):
        faults = 0

        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            self.faults += 2
            return super().propose(requests)

    guarded = GuardedDrafter(Honest(), VOCAB)
    for _ in range(10):
        guarded.propose(requests())
    assert guarded.faults == {"propose: output not finite": 2 * MAX_FAULTS_IN_A_ROW}
    assert guarded.switched_off
    assert "first time: propose: output not finite: 2 of 2 rows" in guarded.notice


@settings(deadline=None)
@given(
    st.lists(st.integers(-5, 2 * VOCAB), min_size=1, max_size=8),
    st.lists(st.integers(-2, 8), min_size=1, max_size=8),
    st.lists(st.floats(), min_size=1, max_size=8),
)
def test_whatever_arrays_a_drafter_returns_only_token_trees_of_the_row_come_out(
    tokens: list[int], parents: list[int], log_probs: list[float]
) -> None:
    nonsense = Draft(tree(tokens, parents, log_probs))
    (draft,) = GuardedDrafter(Planted(lambda _: [nonsense]), VOCAB).propose(requests(1))
    draft.tree.check()
    assert draft.tree.tokens[0] == 4
    assert draft.tree.tokens.max() < VOCAB
