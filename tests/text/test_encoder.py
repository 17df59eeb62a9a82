"""Rows become token ids as a chat in transformers would, or say what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specbatch.errors import ConfigError, RowFault
from specbatch.rows import Message, RawPrompt, SamplingParams
from specbatch.slo import Slo
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer
from tests.tiny_models import write_tiny_model


@dataclass(frozen=True)
class Limit:
    max_context: int = 64


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("chat"), "llama")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base"), "mistral")


def encoder(directory: Path, system: str | None = None, raw_prompts: bool = False) -> PromptEncoder:
    template = ChatTemplate.load(directory)
    return PromptEncoder(Tokenizer.load(directory), template, Limit(), system, raw_prompts)


def row(content: str | tuple[Message, ...], max_tokens: int = 4) -> RawPrompt:
    return RawPrompt(
        7, "key", "id", "batch", content, SamplingParams(max_tokens=max_tokens), Slo(9.0), 1.5, "me"
    )


def chat_ids(directory: Path, messages: list[dict[str, str]]) -> tuple[int, ...]:
    theirs = AutoTokenizer.from_pretrained(directory)
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(theirs(text, add_special_tokens=False).input_ids)


def code_of(encode: PromptEncoder, raw: RawPrompt) -> str:
    with pytest.raises(RowFault) as caught:
        encode.encode(raw)
    assert caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.code


def test_a_prompt_is_one_user_message(chat: Path) -> None:
    prompt = encoder(chat).encode(row("Name a fox"))
    assert prompt.token_ids == chat_ids(chat, [{"role": "user", "content": "Name a fox"}])


def test_everything_else_of_the_row_is_carried_over(chat: Path) -> None:
    raw = row("Name a fox")
    prompt = encoder(chat).encode(raw)
    for name in ("row_index", "key", "id", "tier", "params", "slo", "arrival", "owner"):
        assert getattr(prompt, name) == getattr(raw, name)


def test_system_message_stands_before_conversations_without_one(chat: Path) -> None:
    system, user = {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}
    own = {"role": "system", "content": "Be long"}
    encode = encoder(chat, system="Be brief")
    assert encode.encode(row("Hi")).token_ids == chat_ids(chat, [system, user])
    assert encode.encode(row((user,))).token_ids == chat_ids(chat, [system, user])
    assert encode.encode(row((own, user))).token_ids == chat_ids(chat, [own, user])


def test_prompts_go_in_as_they_are_without_a_template_or_on_demand(base: Path, chat: Path) -> None:
    for directory, raw_prompts in ((base, False), (chat, True)):
        theirs = AutoTokenizer.from_pretrained(directory)
        encode = encoder(directory, raw_prompts=raw_prompts)
        assert encode.encode(row("Name a fox")).token_ids == tuple(theirs.encode("Name a fox"))
    assert encoder(base).encode(row("x")).token_ids[0] == 1  # the model's own start token


def test_messages_use_the_template_even_with_raw_prompts(chat: Path) -> None:
    user = {"role": "user", "content": "Hi"}
    assert encoder(chat, raw_prompts=True).encode(row((user,))).token_ids == chat_ids(chat, [user])


@pytest.mark.parametrize("content", ["", " \n\t", ()])
def test_empty_prompts(chat: Path, base: Path, content: str | tuple[Message, ...]) -> None:
    assert code_of(encoder(chat), row(content)) == "empty_prompt"


@pytest.mark.parametrize(
    "message",
    [{"content": "x"}, {"role": None, "content": "x"}, {"role": "user"}, {"role": "user", "content": None}],
)
def test_messages_without_role_or_content(chat: Path, message: Message) -> None:
    good = {"role": "user", "content": "x"}
    assert code_of(encoder(chat), row((good, message))) == "invalid_messages"


def test_a_tool_call_stands_for_content(chat: Path, tmp_path: Path) -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.name }}", {})
    encode = PromptEncoder(Tokenizer.load(chat), template, Limit())
    assert encode.encode(row((call,))).token_ids == tuple(
        Tokenizer.load(chat).encode("f", add_special_tokens=False)
    )


def test_templates_that_refuse_and_models_without_one(chat: Path, base: Path) -> None:
    refusing = ChatTemplate("{{ raise_exception('no') }}", {})
    assert code_of(PromptEncoder(Tokenizer.load(chat), refusing, Limit()), row("x")) == "template_error"
    assert code_of(encoder(base), row(({"role": "user", "content": "x"},))) == "template_error"


def test_lone_surrogates(chat: Path) -> None:
    assert code_of(encoder(chat), row("half \ud83d")) == "invalid_utf8"


def test_lengths_that_do_not_fit(chat: Path) -> None:
    encode = encoder(chat)
    length = len(encode.encode(row("x")).token_ids)
    assert len(encode.encode(row("x", max_tokens=64 - length)).token_ids) == length
    assert code_of(encode, row("x", max_tokens=65 - length)) == "max_tokens_exceeds_context"
    assert code_of(encode, row("7 " * 64, max_tokens=1)) == "prompt_too_long"


def test_settings_that_contradict_each_other_are_refused(chat: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        encoder(base, system="Be brief")
    with pytest.raises(ConfigError, match="raw prompts"):
        encoder(chat, system="Be brief", raw_prompts=True)
