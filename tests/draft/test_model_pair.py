"""A draft model that means other tokens by the same ids is refused, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import tokenizers

from specbatch.draft.model import check_pair
from specbatch.errors import ModelError
from specbatch.text.tokenizer import Tokenizer
from tests.engine.table_model import CONFIG
from tests.tiny_models import byte_level_tokenizer

ROOMY = replace(CONFIG, vocab_size=1000)


def tokenizer(change: Callable[[dict[str, int]], None] | None = None, markup: bool = True) -> Tokenizer:
    state = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    if change is not None:
        change(state["model"]["vocab"])
        state["model"]["merges"] = []
    for entry in state["added_tokens"]:
        entry["special"] = markup if entry["content"] == "<|im_end|>" else entry["special"]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))


def swap(vocab: dict[str, int]) -> None:
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]


def without_tilde(vocab: dict[str, int]) -> None:
    del vocab["~"]


def test_a_draft_model_with_other_tokens_is_refused_with_the_reason() -> None:
    ours = tokenizer()
    check_pair(("target", ours), ("draft", tokenizer()), ROOMY)
    swapped = r"draft cannot draft for target: 2 of \d+ token ids differ, the first is \d+: 'A' against 'B'"
    with pytest.raises(ModelError, match=swapped):
        check_pair(("target", ours), ("draft", tokenizer(swap)), ROOMY)
    with pytest.raises(ModelError, match=r"token 2 \('<\|im_end\|>'\) is markup in only one of them"):
        check_pair(("target", ours), ("draft", tokenizer(markup=False)), ROOMY)
    missing = r"\d+ of \d+ token ids differ, the first is \d+: '~' against no token"
    with pytest.raises(ModelError, match=missing):
        check_pair(("target", ours), ("draft", tokenizer(without_tilde)), ROOMY)
    small = replace(ROOMY, vocab_size=ours.vocab_size - 1)
    with pytest.raises(ModelError, match=r"its embedding has \d+ rows, the tokenizer \d+ ids"):
        check_pair(("target", ours), ("draft", ours), small)
