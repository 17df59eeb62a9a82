"""The page pool: nothing leaks, nothing is handed out twice, shared pages hold what they should."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specbatch.pages import NULL_PAGE, PagePool


def test_pages_come_back_and_page_zero_never_leaves() -> None:
    pool = PagePool(5, 4, sharing=False)
    pages = pool.allocate(4)
    assert pages is not None
    assert sorted(pages) == [1, 2, 3, 4]
    assert pool.allocate(1) is None
    pool.release(pages)
    assert pool.available == 4
    assert NULL_PAGE not in pages


def test_a_prefix_is_shared_page_by_page_up_to_the_limit() -> None:
    pool = PagePool(10, 2, sharing=True)
    first = pool.allocate(3)
    assert first is not None
    pool.publish(first, [1, 2, 3, 4, 5], 0)
    assert pool.match([1, 2, 3, 4, 5, 6], limit=5) == first[:2]
    assert pool.match([1, 2, 3, 4], limit=3) == first[:1]
    assert pool.match([9, 2, 3, 4], limit=4) == []
    pool.check([first, first[:2], first[:1]])


def test_a_page_nobody_holds_is_found_again_until_it_is_needed() -> None:
    pool = PagePool(3, 1, sharing=True)
    pages = pool.allocate(2)
    assert pages is not None
    pool.publish(pages, [7, 8], 0)
    pool.release(pages)
    assert pool.match([7, 8, 9], limit=2) == pages
    pool.release(pages)
    assert pool.allocate(2) is not None
    assert pool.match([7, 8, 9], limit=2) == []


def test_the_end_of_a_prefix_is_given_up_before_its_beginning() -> None:
    pool = PagePool(4, 1, sharing=True)
    pages = pool.allocate(3)
    assert pages is not None
    pool.publish(pages, [1, 2, 3], 0)
    pool.release(pages)
    pool.allocate(1)
    assert pool.match([1, 2, 3, 4], limit=3) == pages[:2]


def test_forgotten_pages_are_not_shared_any_more() -> None:
    pool = PagePool(4, 1, sharing=True)
    pages = pool.allocate(2)
    assert pages is not None
    pool.publish(pages, [1, 2], 0)
    pool.forget(pages)
    assert pool.match([1, 2, 3], limit=2) == []
    pool.release(pages)
    pool.check([])


def test_check_sees_a_page_held_twice() -> None:
    pool = PagePool(4, 1, sharing=True)
    pages = pool.allocate(1)
    assert pages is not None
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([pages, pages])


class PoolMachine(RuleBasedStateMachine):
    """Rows start, grow, publish and leave in any order; texts are from a small alphabet to collide."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12, 2, sharing=True)
        self.rows: list[tuple[list[int], list[int]]] = []  # (tokens, pages)
        self.truth: dict[int, tuple[int, ...]] = {}  # page → whole text up to its end

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def start(self, tokens: list[int]) -> None:
        pages = self.pool.match(tokens, len(tokens) - 1)
        for i, page in enumerate(pages):
            assert self.truth[page] == tuple(tokens[: 2 * (i + 1)]), "shared page with another text"
        fresh = self.pool.allocate(self.pool.pages_for(len(tokens)) - len(pages))
        if fresh is None:
            self.pool.release(pages)
            return
        for i in range(len(pages), len(pages) + len(fresh)):
            page = (pages + fresh)[i]
            self.truth[page] = tuple(tokens[: 2 * (i + 1)])
        self.pool.publish(pages + fresh, tokens, len(pages))
        self.rows.append((tokens, pages + fresh))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.rows) - 1))
        self.pool.release(self.rows.pop(index)[1])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.rows) - 1))
        self.pool.forget(self.rows[index][1])

    @invariant()
    def sound(self) -> None:
        self.pool.check([pages for _, pages in self.rows])


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, deadline=None)


@given(st.integers(1, 1000), st.integers(1, 64))
def test_pages_for_covers_exactly(tokens: int, size: int) -> None:
    pages = PagePool(2, size, sharing=False).pages_for(tokens)
    assert (pages - 1) * size < tokens <= pages * size
