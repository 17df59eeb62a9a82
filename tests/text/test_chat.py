"""Chat templates render as in transformers, in a sandbox, and fail in a way a row can report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from specbatch.errors import ModelError
from specbatch.models.resolve import resolve_model
from specbatch.text.chat import ChatTemplate, RenderError
from tests.tiny_models import write_tiny_model

TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, 3]}}}
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "One turn, with  spaces\nand <html> & 'quotes' é \U0001f642"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "2+2?", "name": None},
        {"role": "assistant", "content": "4", "tool_calls": None},
        {"role": "user", "content": "and 3+3?"},
    ],
    [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "content": "6", "tool_call_id": "1"},
    ],
    [
        {"role": "user", "content": "think"},
        {"role": "assistant", "content": "done", "reasoning": "because"},
        {"role": "user", "content": "go on"},
    ],
)

TEMPLATES = {
    "llama 3": (
        "{{- bos_token }}\n{%- if not date_string is defined %}\n"
        "    {%- set date_string = strftime_now('%Y') %}\n{%- endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n"
        "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n"
        "Today: {{ date_string }}\n\n{{- system }}<|eot|>\n"
        "{%- for message in messages %}\n"
        "    {{- '<|' + message.role + '|>' + (message.content or '')|trim }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|assistant|>' }}\n{%- endif %}\n"
    ),
    "tools": (
        "{% for m in messages %}\n"
        "  {% if m.tool_calls %}\n{{ m.tool_calls | tojson }} {{ m.tool_calls | tojson(indent=2) }}\n"
        "  {% else %}\n[{{ m['role'] }}] {{ m.content }}{{ eos_token }}\n  {% endif %}\n{% endfor %}\n"
    ),
    "loop controls": (
        "{% set ns = namespace(count=0) %}{% for m in messages %}"
        "{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% set ns.count = ns.count + 1 %}{{ ns.count }}:{{ m.role }} "
        "{% if ns.count == 2 %}{% break %}{% endif %}"
        "{% endfor %}{{ dict(a=1) | tojson }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}\n{{ m.content }}\n{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "reasoning": (
        "{% for m in messages %}"
        "{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.name is defined }};"
        "{% endfor %}"
    ),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("hf"), "llama")


def load(directory: Path) -> ChatTemplate:
    template = ChatTemplate.load(directory)
    assert template is not None
    return template


def assert_same(directory: Path, conversation: list[dict[str, Any]]) -> None:
    theirs = AutoTokenizer.from_pretrained(directory)
    expected = theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert load(directory).render(conversation) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendering_equals_transformers(directory: Path, tmp_path: Path, name: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / file).write_bytes((directory / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    for conversation in CONVERSATIONS:
        assert_same(tmp_path, conversation)


@pytest.mark.model
def test_default_model_renders_as_in_transformers() -> None:
    directory = resolve_model("smollm2-135m", report=lambda _: None).directory
    for conversation in CONVERSATIONS:
        if all(isinstance(message["content"], str) for message in conversation):
            assert_same(directory, conversation)


def test_templates_are_found_where_transformers_finds_them(directory: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert ChatTemplate.load(tmp_path) is None
    settings: dict[str, Any] = {"bos_token": {"content": "<s>"}}
    named = [{"name": "default", "template": "list {{ bos_token }}"}, {"name": "tool_use", "template": "no"}]
    for source, expected in (("string {{ bos_token }}", "string <s>"), (named, "list <s>")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": source}))
        assert load(tmp_path).render(messages) == expected
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert load(tmp_path).render(messages) == "json"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load(tmp_path).render(messages) == "file"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(write_tiny_model(tmp_path, "mistral")) is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[3]['content'] }}", "no element 3"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ messages[0].content / 0 }}", "unsupported operand"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages | tojson(separators=3) }}", "unpack"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_failing_templates_say_why(source: str, words: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(RenderError, match=words):
        template.render([{"role": "user", "content": "x"}])


def test_unreadable_templates_are_refused_at_the_start() -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate("{% for %}", {})


def test_the_date_can_be_held_still() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, datetime(2026, 7, 1, tzinfo=UTC))
    assert template.render([{"role": "user", "content": "x"}]) == "01 Jul 2026"
