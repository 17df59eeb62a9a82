"""Incremental text equals decoding everything at once, and stop strings cut it where they begin."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from specbatch.text.detokenize import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    WholeDetokenizer,
    detokenizer_for,
)
from specbatch.text.stream import TextStream
from specbatch.text.tokenizer import Tokenizer
from tests.tiny_models import byte_level_tokenizer, sentencepiece_tokenizer

KINDS = ("byte level", "byte fallback", "byte fallback, no strip", "other")


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer of every kind of decoder."""
    made = byte_level_tokenizer() if kind == "byte level" else sentencepiece_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        made.save_pretrained(name)
        tokenizer = Tokenizer.load(Path(name))
    if kind == "byte fallback, no strip":
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.backend.decoder = decoders.Sequence(steps)
    elif kind == "other":
        tokenizer.backend.decoder = decoders.Metaspace()
    return tokenizer


def token_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens: words, whole and broken bytes, markup, and ids outside the vocabulary."""
    size = tokenizer_of(kind).vocab_size
    return st.lists(st.one_of(st.integers(0, size + 3), st.integers(0, 262)), max_size=30)


def reference(tokenizer: Tokenizer, ids: Sequence[int], stop: tuple[str, ...]) -> tuple[str, int | None]:
    """Text and the number of tokens it took, by decoding every beginning of the tokens."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:count])).rstrip("\N{REPLACEMENT CHARACTER}")
        ends = [(text.find(string) + len(string), -len(string)) for string in stop if string in text]
        if ends:
            end, length = min(ends)
            return text[: end + length], count
    return tokenizer.decode(list(ids)), None


def test_decoders_are_recognised() -> None:
    assert isinstance(detokenizer_for(tokenizer_of("byte level")), ByteLevelDetokenizer)
    assert isinstance(detokenizer_for(tokenizer_of("byte fallback")), ByteFallbackDetokenizer)
    assert isinstance(detokenizer_for(tokenizer_of("byte fallback, no strip")), ByteFallbackDetokenizer)
    assert isinstance(detokenizer_for(tokenizer_of("other")), WholeDetokenizer)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_finished_text_equals_decoding_all_tokens(kind: str, data: st.DataObject) -> None:
    tokenizer, ids = tokenizer_of(kind), data.draw(token_ids(kind))
    stream = TextStream(tokenizer)
    assert [token for token in ids if stream.push(token)] == []
    assert stream.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_text_so_far_never_shows_half_a_character(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    written = data.draw(st.text(st.sampled_from("ab é中\U0001f642\u200d"), max_size=12))
    ids = tokenizer.encode(written, add_special_tokens=False)
    final = tokenizer.decode(ids)
    stream = TextStream(tokenizer)
    for token in ids:
        stream.push(token)
        assert final.startswith(stream.text)
    assert stream.text == stream.finish() == final


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_stop_strings_cut_as_a_search_of_the_whole_text_would(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    alphabet = st.sampled_from("aab. é\U0001f642")
    written = data.draw(st.text(alphabet, max_size=25))
    stop = tuple(data.draw(st.lists(st.text(alphabet, min_size=1, max_size=4), min_size=1, max_size=3)))
    ids = tokenizer.encode(written, add_special_tokens=False)
    text, taken = reference(tokenizer, ids, stop)
    stream = TextStream(tokenizer, stop)
    flags = [stream.push(token) for token in ids]
    assert flags == [taken is not None and index + 1 >= taken for index in range(len(ids))]
    assert stream.finish() == stream.text == text


@pytest.mark.parametrize("kind", KINDS[:2])
def test_stop_may_begin_tokens_earlier_and_end_inside_one(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the lazy dog and the fox", add_special_tokens=False)
    stream = TextStream(tokenizer, ("zy d", "never"))
    flags = [stream.push(token) for token in ids]
    assert len(ids) > 6
    assert any(flags)
    assert not flags[0]
    assert stream.text == stream.finish() == "the la"


def test_earliest_end_wins_then_the_longest() -> None:
    tokenizer = tokenizer_of("byte level")
    ids = tokenizer.encode("one abcd two", add_special_tokens=False)
    for stop, expected in (
        (("abcd", "bc"), "one a"),
        (("bc", "abc"), "one "),
        (("cd", "d two", "abcd"), "one "),
    ):
        stream = TextStream(tokenizer, stop)
        for token in ids:
            stream.push(token)
        assert stream.text == expected


def test_markup_is_no_text_and_stops_nothing() -> None:
    tokenizer = tokenizer_of("byte level")
    ids = tokenizer.encode("a<|im_end|>b<think>c", add_special_tokens=False)
    stream = TextStream(tokenizer, ("<|im_end|>",))
    assert [token for token in ids if stream.push(token)] == []
    assert stream.finish() == "ab<think>c"


def test_incomplete_character_is_left_out_until_the_end() -> None:
    tokenizer = tokenizer_of("byte level")
    *first, _ = tokenizer.encode("x\U0001f642", add_special_tokens=False)
    stream = TextStream(tokenizer)
    for token in first:
        stream.push(token)
    assert stream.text == "x"
    assert stream.finish() == "x\N{REPLACEMENT CHARACTER}"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        TextStream(tokenizer_of("byte level"), ("",))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_push_costs_the_same_however_long_the_text(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the lazy dog ", add_special_tokens=False) * 1500
    stream = TextStream(tokenizer, ("never found",))
    quarter = len(ids) // 4
    costs = []
    for part in range(4):
        best = float("inf")
        for start in range(part * quarter, (part + 1) * quarter - 100, 100):
            began = time.process_time()
            for token in ids[start : start + 100]:
                stream.push(token)
            best = min(best, time.process_time() - began)
        costs.append(best)
    assert costs[3] < 3 * costs[0]
