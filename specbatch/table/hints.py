"""What to do about a table whose columns do not fit: one line of help for each refusal."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

_SHOWN = 20
_RENAME = "or rename it if it means something else"
# Kind of a column, as messages call it → the type to cast to, and how one does that in pandas.
_CASTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "string": ("string", '{}.astype("string")'),
        "string or integer": ("int64 or string", '{}.astype("Int64")'),
        "integer": ("int64", '{}.astype("Int64")'),
        "number": ("float64", '{}.astype("float64")'),
        "timestamp with time zone": ("timestamp with time zone", "pd.to_datetime({}, utc=True)"),
    }
)


def no_prompt(texts: Sequence[str], conversations: Sequence[str], schema: pa.Schema) -> str:
    """How to say where the prompt is.

    Args:
        texts: Columns that hold text.
        conversations: Columns that hold conversations.
        schema: Of the table.
    """
    if conversations:
        return f'say which column holds the conversations: [columns] messages = "{conversations[0]}"'
    if not texts:
        return f"one column must hold text; {columns(schema)}"
    name = texts[0] if len(texts) == 1 else "NAME"
    choice = "" if len(texts) == 1 else f"; columns with text: {_listed(texts)}"
    return f"say where the prompt is: --prompt-column {name}, or --template '... {{{name}}} ...'{choice}"


def not_ours(name: str, value: str, known: Sequence[str]) -> str:
    """About a key of ``[columns]`` that is none of our columns; the map may be the wrong way round."""
    if value in known:
        return f'did you mean {value} = "{name}"? On the left is our name, on the right yours'
    return f"{_closest(name, known)}known: {', '.join(known)}"


def missing(name: str, schema: pa.Schema) -> str:
    """About a column that somebody named and the table has not."""
    return _closest(name, schema.names) + columns(schema)


def missing_in_where(name: str, text: str, schema: pa.Schema) -> str:
    """The same for a condition, where a text in double quotes is taken for a column."""
    if f'"{name}"' in text:
        corrected = text.replace(f'"{name}"', f"'{name}'")
        return f"text stands in single quotes, double ones are for names of columns: {corrected}"
    return missing(name, schema)


def columns(schema: pa.Schema) -> str:
    """What the table has."""
    return f"the table has: {_listed(schema.names) or 'no columns'}"


def wrong_type(ours: str, kind: str, field: pa.Field, is_text: Callable[[pa.DataType], bool]) -> str:
    """How to make a column what it should be.

    Args:
        ours: Our name of the column.
        kind: What it should hold, as messages call it.
        field: As it is.
        is_text: Whether a type is text.
    """
    column = f'df["{field.name}"]'
    if kind in _CASTS:
        target, call = _CASTS[kind]
        instead = (
            f"use --template '{{{field.name}}}', which writes any value as text; or "
            if ours == "prompt"
            else ""
        )
        return f"{instead}cast it to {target} (pandas: {call.format(column)}), {_RENAME}"
    if not is_text(field.type):
        return f"store it as {kind}, {_RENAME}"
    if ours == "messages":
        return f"if it is JSON, read it first (pandas: {column}.map(json.loads)), {_RENAME}"
    return f"put each text into a list (pandas: {column}.map(lambda text: [text])), {_RENAME}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _closest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{close[0]}`? " if close else ""
