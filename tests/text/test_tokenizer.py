"""Our token ids and texts are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from specbatch.errors import ModelError
from specbatch.models.resolve import resolve_model
from specbatch.text.tokenizer import Tokenizer
from tests.tiny_models import write_tiny_model

TEXTS = (
    "",
    "Extract the names: Ana, Børge and 李雷.",
    "  leading, trailing and  double spaces  ",
    "tabs\tand\nnewlines\r\n\r\n\n and \u00a0 no-break \u200b zero-width \ufeff mark",
    "emoji \U0001f642, \U0001f468\u200d\U0001f469\u200d\U0001f467, \U0001f1f5\U0001f1f9 \U0001f44d\U0001f3fd",
    "العربية, עברית, हिन्दी, ไทย, 한국어, 日本語",
    "e\u0301 and \u00e9 are not the same bytes; ﬁ is a ligature",
    "def f(x):\n    return {'a': [x**2, -1.5e-3]}  # 1234567 0x1F\n",
    "price  1 234,56 € on 2026-11-29 at 07:05",
    "<|im_start|>system\nbe brief<|im_end|><|endoftext|>",
    "<s>not</s> <unk> <0x41> ▁under",
    "x" * 300 + " " * 50 + "\\n" * 20,
    '{"json": ["\\u00e9", null, true]}\n\x00\x07\x1b[0m',
)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("hf"), request.param)


def assert_same(directory: Path) -> None:
    ours, theirs = Tokenizer.load(directory), AutoTokenizer.from_pretrained(directory)
    assert ours.vocab_size == len(theirs)
    assert ours.special_ids == set(theirs.all_special_ids) | {
        token for token, entry in theirs.added_tokens_decoder.items() if entry.special
    }
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special), text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_ids_and_texts_equal_those_of_transformers(directory: Path) -> None:
    assert_same(directory)


@pytest.mark.model
def test_default_model_tokenizes_as_transformers_does() -> None:
    assert_same(resolve_model("smollm2-135m", report=lambda _: None).directory)


@pytest.mark.model
def test_default_model_writes_every_digit_as_a_token_of_its_own() -> None:
    tokenizer = Tokenizer.load(resolve_model("smollm2-135m", report=lambda _: None).directory)
    ids = tokenizer.encode("on  31 of 2026", add_special_tokens=False)
    assert [tokenizer.token(token) for token in ids] == ["on", "ĠĠ", "3", "1", "Ġof", "Ġ", "2", "0", "2", "6"]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_level_text_survives_the_round_trip(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(ids, skip_special_tokens=False) == text


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tiny_model(tmp_path_factory.mktemp("hf"), "qwen2"))


def test_lone_surrogates_are_an_error_of_their_own(byte_level: Tokenizer) -> None:
    with pytest.raises(UnicodeEncodeError):
        byte_level.encode("half a pair \ud83d", add_special_tokens=False)


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path: Path) -> None:
    plain = Tokenizer.load(write_tiny_model(tmp_path, "llama"))
    text = "a text of more than four tokens"
    expected = plain.encode(text, add_special_tokens=False)
    plain.backend.enable_truncation(4)
    plain.backend.enable_padding(length=64)
    plain.backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode(text, add_special_tokens=False) == expected


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(tmp_path)
