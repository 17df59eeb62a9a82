"""The bounded text with hash chains finds what a search through everything finds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.draft import occurrences
from specbatch.draft.occurrences import END, MAX_MATCH, MAX_OCCURRENCES, TokenHistory, find_reference

tokens_of_few = st.lists(st.integers(0, 3), max_size=90)
documents_of_few = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), tokens_of_few), max_size=6)


def followed_by(history: TokenHistory, place: int) -> list[int]:
    text = history.text[place:].tolist()
    return text[: text.index(END)]


def contexts(text: Sequence[int]) -> array[int]:
    return array("i", text[-MAX_MATCH:])


@settings(deadline=None)
@given(tokens_of_few, st.integers(1, 9))
def test_a_growing_text_finds_its_own_longest_suffix_at_every_length(text: list[int], min_match: int) -> None:
    history = TokenHistory(max(1, len(text)), min_match)
    for length, token in enumerate(text, start=1):
        history.append(token)
        found = history.find(history.tail(MAX_MATCH))
        longest, places = find_reference([((), text[:length])], text[:length], min_match)
        assert (found.length if found else 0) == longest
        continuations = [text[at:length] for _, at in places]
        assert [followed_by(history, place) for place in (found.places if found else ())] == continuations


@settings(deadline=None)
@given(documents_of_few, tokens_of_few, st.integers(1, 4))
def test_an_index_of_documents_finds_the_longest_match_in_all_of_them(
    documents: list[tuple[list[int], list[int]]], text: list[int], min_match: int
) -> None:
    history = TokenHistory(1000, min_match)
    for context, tokens in documents:
        history.add(context, tokens)
    found = history.find(contexts(text))
    longest, places = find_reference(documents, text, min_match)
    assert (found.length if found else 0) == longest
    continuations = [documents[number][1][at:] for number, at in places]
    assert [followed_by(history, place) for place in (found.places if found else ())] == continuations


short_documents = st.lists(st.tuples(st.just([3]), st.lists(st.integers(0, 3), max_size=20)), max_size=6)


@settings(deadline=None)
@given(short_documents, tokens_of_few, st.integers(1, 4))
def test_more_chains_lose_nothing(
    documents: list[tuple[list[int], list[int]]], text: list[int], min_match: int
) -> None:
    whole = TokenHistory(10_000, min_match)
    with patch.object(occurrences, "_FIRST_BUCKETS", 2), patch.object(occurrences, "_MORE_BUCKETS", 2):
        growing = TokenHistory(10_000, min_match)
        for context, tokens in documents:
            growing.add(context, tokens)
            whole.add(context, tokens)
    assert growing.find(contexts(text)) == whole.find(contexts(text))
    assert growing.num_bytes <= whole.num_bytes


def test_an_index_takes_memory_as_it_fills() -> None:
    history = TokenHistory(1 << 16, 2)
    empty = history.num_bytes
    history.add([], list(range(1 << 13)))
    assert empty < history.num_bytes
    history.add([], list(range(1 << 15)))
    full = history.num_bytes
    history.add([], list(range(1 << 15)))
    assert history.num_bytes == full
    assert history.find(array("i", [100, 101])) is not None


@settings(deadline=None)
@given(documents_of_few, tokens_of_few, st.integers(5, 60), st.integers(1, 4))
def test_a_full_index_reports_nothing_that_was_overwritten(
    documents: list[tuple[list[int], list[int]]], text: list[int], capacity: int, min_match: int
) -> None:
    history = TokenHistory(capacity, min_match)
    for context, tokens in documents:
        history.add(context, tokens)
    found = history.find(contexts(text))
    if found is not None:
        whole = [[*context, *tokens] for context, tokens in documents]
        for place in found.places:
            seen = [*text[len(text) - found.length :], *followed_by(history, place)]
            assert any(seen == document[-len(seen) :] for document in whole), "no document says this"


@settings(deadline=None)
@given(documents_of_few, st.integers(100, 150))
def test_a_full_index_keeps_the_newest_document(
    documents: list[tuple[list[int], list[int]]], capacity: int
) -> None:
    history = TokenHistory(capacity, 2)
    for context, tokens in documents:
        history.add(context, tokens)
    newest = [7, 8, 9, 7, 8]
    history.add([5, 6], newest)
    found = history.find(array("i", [5, 6]))
    assert found is not None
    assert [followed_by(history, place) for place in found.places] == [newest]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50_000), max_size=300), max_size=40))
def test_memory_does_not_grow_with_what_is_added(documents: list[list[int]]) -> None:
    history = TokenHistory(256, 3)
    before = history.num_bytes
    for tokens in documents:
        history.add(tokens[:8], tokens)
    assert history.num_bytes == before
    assert before < 256 * 64


def test_of_a_document_that_is_too_long_the_end_is_kept() -> None:
    history = TokenHistory(6, 2)
    history.add([1, 2, 3], list(range(10, 30)))
    assert history.find(array("i", [22, 23])) is None
    found = history.find(array("i", [24, 25]))
    assert found is not None
    assert [followed_by(history, place) for place in found.places] == [[26, 27, 28, 29]]


def test_the_newest_occurrences_are_looked_at_and_no_more() -> None:
    history = TokenHistory(10_000, 2)
    for _ in range(1000):
        history.add([], [1, 2, 3])
    found = history.find(array("i", [1, 2]))
    assert found is not None
    assert len(found.places) == MAX_OCCURRENCES
    assert list(found.places) == sorted(found.places, reverse=True)


def test_runs_that_share_a_hash_are_walked_past_but_not_for_ever() -> None:
    history = TokenHistory(1, 1)
    crowded = TokenHistory(4000, 1)
    crowded._mask, crowded._buckets = 0, 1  # every run hashes to the same chain
    crowded.add([], [5, 6])
    for _ in range(50):
        crowded.add([], [7, 8])
    near = crowded.find(array("i", [5]))
    assert near is not None
    for _ in range(1000):
        crowded.add([], [7, 8])
    assert crowded.find(array("i", [5])) is None
    assert history.find(array("i", [5])) is None


@pytest.mark.parametrize(("capacity", "min_match"), [(0, 2), (10, 0)])
def test_a_history_of_nothing_is_refused(capacity: int, min_match: int) -> None:
    with pytest.raises(ValueError, match="a history needs"):
        TokenHistory(capacity, min_match)
