"""Chat templates, rendered as transformers renders them.

Templates come with models from strangers, so they run in jinja2's immutable sandbox and see plain
Python values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specbatch.errors import ModelError
from specbatch.rows import Message

_TOKEN_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_TEMPLATE_FAILURES: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class RenderError(Exception):
    """The template refused a conversation or failed on it. The text says why."""


class ChatTemplate:
    """How a model wants a conversation written.

    Args:
        source: The jinja2 template.
        tokens: Markup tokens templates refer to by name, such as ``bos_token``.
        now: What templates that print a date take as the present; ``None`` is the clock. A fixed
            value keeps the text of a resumed run the same.

    Raises:
        ModelError: The template is no jinja2.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], now: datetime | None = None) -> None:
        self.source = source
        self._tokens = dict(tokens)
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template of the model cannot be read: {error}") from error

    @classmethod
    def load(cls, directory: Path, now: datetime | None = None) -> ChatTemplate | None:
        """The template of a model directory; ``None`` when the model has none.

        Looked for, as in transformers, in ``chat_template.jinja``, ``chat_template.json`` and
        ``tokenizer_config.json``.
        """
        settings = _optional_json(directory / "tokenizer_config.json")
        tokens = _optional_json(directory / "special_tokens_map.json") | settings
        source = _source(directory, settings)
        if source is None:
            return None
        named = {name: _content(tokens.get(name)) for name in _TOKEN_NAMES}
        return cls(source, {name: token for name, token in named.items() if token is not None}, now)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt text, ending where the model's answer begins.

        Null fields of a message are left out, as in transformers: templates expect them missing.

        Raises:
            RenderError: The template raised, or asked for something the messages do not have.
        """
        plain = [
            _aliased({key: value for key, value in message.items() if value is not None})
            for message in messages
        ]
        try:
            return self._template.render(
                messages=plain, tools=None, documents=None, add_generation_prompt=True, **self._tokens
            )
        except _TEMPLATE_FAILURES as error:
            raise RenderError(" ".join(str(error).split()) or type(error).__name__) from error


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; the text is what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the name jinja2 looks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: datetime | None) -> ImmutableSandboxedEnvironment:
    """The environment transformers compiles chat templates in."""

    def strftime_now(pattern: str) -> str:
        return (now or datetime.now().astimezone()).strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _aliased(message: dict[str, Any]) -> dict[str, Any]:
    """Give a message's reasoning the names that templates read, whatever it is called."""
    reasoning = next((message[key] for key in _REASONING if key in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _source(directory: Path, settings: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}", "fetch the model again") from error
    found = _optional_json(directory / "chat_template.json").get("chat_template")
    found = settings.get("chat_template") if found is None else found
    if isinstance(found, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default")
    return None if found is None else str(found)


def _content(token: object) -> str | None:
    """A markup token is stored as a string or as an object with its content."""
    if isinstance(token, dict):
        token = token.get("content")
    return None if token is None else str(token)


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
