"""One line of an OpenAI batch file → one input row, or the reason why not.

Format: OpenAI Batch API reference, "The request input object", and the body of
``POST /v1/chat/completions``; vLLM's additional sampling fields are understood, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

ENDPOINT = "/v1/chat/completions"

_CALL = pa.struct(
    [
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("function", pa.struct([pa.field("name", pa.string()), pa.field("arguments", pa.string())])),
    ]
)
_TURN = pa.struct(
    [
        pa.field("role", pa.string()),
        pa.field("content", pa.string()),
        pa.field("name", pa.string()),
        pa.field("tool_call_id", pa.string()),
        pa.field("tool_calls", pa.list_(_CALL)),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("messages", pa.list_(_TURN), nullable=False),
        pa.field("max_tokens", pa.int64()),
        pa.field("temperature", pa.float64()),
        pa.field("top_p", pa.float64()),
        pa.field("top_k", pa.int64()),
        pa.field("min_p", pa.float64()),
        pa.field("repetition_penalty", pa.float64()),
        pa.field("seed", pa.int64()),
        pa.field("stop", pa.list_(pa.string())),
        pa.field("owner", pa.string()),
        pa.field("model", pa.string()),
    ]
)
"""Of the table that is written; ``model`` is no column of ours and passes through to the results."""

_TURN_FIELDS = frozenset(_TURN.field(index).name for index in range(_TURN.num_fields))
_KNOWN = frozenset(
    {"messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"}
    | {"repetition_penalty", "seed", "stop", "user"}
)
# Fields that do not shape the text; they are reported and left out.
_IRRELEVANT = frozenset(
    {"metadata", "store", "service_tier", "stream_options", "prompt_cache_key", "safety_identifier"}
)
# Values that ask for what happens anyway.
_NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "n": (1,),
        "stream": (False,),
        "logprobs": (False,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none",),
        "parallel_tool_calls": (True, False),
        "modalities": (["text"],),
    }
)


class BadLineError(Exception):
    """A line that cannot become a row. The text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line, understood.

    Attributes:
        row: A value per column of :data:`SCHEMA`.
        unsupported: Fields that would have changed the text and cannot be honoured.
        ignored: Fields that do not change the text and were left out.
    """

    row: Mapping[str, object]
    unsupported: tuple[str, ...]
    ignored: tuple[str, ...]


def parse_request(line: bytes) -> Request:
    """Understand one line.

    Raises:
        BadLineError: It is not a chat completion request.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"not JSON: {error}") from None
    if b"\\u" in line:
        _check_unicode(content)
    request = _object("the line", content)
    _expect(request, "method", "POST")
    _expect(request, "url", ENDPOINT)
    custom_id = _text(request, "custom_id")
    if not custom_id:
        raise BadLineError("custom_id is missing or empty")
    body = _object("body", request.get("body"))
    known = _NEUTRAL.keys() | _KNOWN | _IRRELEVANT
    surplus = [key for key, value in body.items() if value is not None and key not in known]
    surplus += [key for key in _NEUTRAL if body.get(key) is not None and body[key] not in _NEUTRAL[key]]
    row = {
        "id": custom_id,
        "messages": _messages(body.get("messages")),
        "max_tokens": _max_tokens(body),
        "temperature": _number(body, "temperature"),
        "top_p": _number(body, "top_p"),
        "top_k": _integer(body, "top_k"),
        "min_p": _number(body, "min_p"),
        "repetition_penalty": _number(body, "repetition_penalty"),
        "seed": _integer(body, "seed"),
        "stop": _stop(body.get("stop")),
        "owner": _text(body, "user"),
        "model": _text(body, "model"),
    }
    ignored = [key for key in body if key in _IRRELEVANT and body[key] is not None]
    ignored += [key for key in request if key not in ("custom_id", "method", "url", "body")]
    return Request(row, tuple(f"body.{key}" for key in surplus), tuple(ignored))


def _check_unicode(content: object) -> None:
    """An escape may spell half a character, which no table can hold."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadLineError("an escape such as \\ud83d stands alone and is no character") from None


def _expect(request: Mapping[str, object], key: str, wanted: str) -> None:
    if request.get(key) != wanted:
        raise BadLineError(f"{key} is {json.dumps(request.get(key))}, expected {json.dumps(wanted)}")


def _object(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadLineError(f"{name} is not an object")
    return value


def _text(body: Mapping[str, object], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise BadLineError(f"{key} is {_short(value)}, expected a string")
    return value


def _number(body: Mapping[str, object], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadLineError(f"{key} is {_short(value)}, expected a number")
    return float(value)


def _integer(body: Mapping[str, object], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise BadLineError(f"{key} is {_short(value)}, expected an integer of 64 bits")
    return value


def _max_tokens(body: Mapping[str, object]) -> int | None:
    """The newer name of the two; both only if they agree."""
    new, old = _integer(body, "max_completion_tokens"), _integer(body, "max_tokens")
    if new is not None and old is not None and new != old:
        raise BadLineError(f"max_completion_tokens is {new}, but max_tokens is {old}")
    return old if new is None else new


def _stop(value: object) -> list[str] | None:
    if value is None:
        return None
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise BadLineError(f"stop is {_short(value)}, expected a string or a list of strings")
    return strings


def _messages(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not value:
        raise BadLineError("body.messages is missing or empty")
    return [_turn(number, turn) for number, turn in enumerate(value)]


def _turn(number: int, value: object) -> dict[str, object]:
    name = f"messages[{number}]"
    turn = _object(name, value)
    strangers = [key for key, item in turn.items() if key not in _TURN_FIELDS and item is not None]
    if strangers:
        raise BadLineError(f"{name}.{strangers[0]} is not supported")
    if not isinstance(turn.get("role"), str):
        raise BadLineError(f"{name} has no role")
    return {
        "role": turn["role"],
        "content": _content(name, turn.get("content")),
        "name": _text(turn, "name"),
        "tool_call_id": _text(turn, "tool_call_id"),
        "tool_calls": _calls(name, turn.get("tool_calls")),
    }


def _content(name: str, value: object) -> str | None:
    """A string, or parts of text one after the other; pictures and sound are refused."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadLineError(f"{name}.content is {_short(value)}, expected a string or a list of parts")
    texts: list[str] = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get("text") if isinstance(part, dict) and kind == "text" else None
        if not isinstance(text, str):
            raise BadLineError(f"{name}.content holds a part of type {_short(kind)}; only text is supported")
        texts.append(text)
    return "".join(texts)


def _calls(name: str, value: object) -> list[dict[str, object]] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadLineError(f"{name}.tool_calls is not a list")
    calls: list[dict[str, object]] = []
    for number, item in enumerate(value):
        place = f"{name}.tool_calls[{number}]"
        call = _object(place, item)
        function = _object(f"{place}.function", call.get("function"))
        strangers = [key for key in call if key not in ("id", "type", "function")]
        strangers += [f"function.{key}" for key in function if key not in ("name", "arguments")]
        if strangers:
            raise BadLineError(f"{place}.{strangers[0]} is not supported")
        called = {"name": _text(function, "name"), "arguments": _text(function, "arguments")}
        calls.append({"id": _text(call, "id"), "type": _text(call, "type"), "function": called})
    return calls


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
