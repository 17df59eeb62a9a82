"""The input columns we know, the types they may have, and their canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from specbatch.errors import ConfigError, InputError
from specbatch.table import hints
from specbatch.table.template import Template


class Kind(Enum):
    """What a column means; the value is how its type is called in messages."""

    TEXT = "string"
    ID = "string or integer"
    MESSAGES = "list<struct<role, content, ...>>"
    INTEGER = "integer"
    NUMBER = "number"
    TIMESTAMP = "timestamp with time zone"
    STRINGS = "list<string>"


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "prompt": Kind.TEXT,
        "messages": Kind.MESSAGES,
        "id": Kind.ID,
        "deadline": Kind.TIMESTAMP,
        "deadline_s": Kind.NUMBER,
        "tier": Kind.TEXT,
        "tpot_slo_ms": Kind.NUMBER,
        "ttft_slo_ms": Kind.NUMBER,
        "max_tokens": Kind.INTEGER,
        "temperature": Kind.NUMBER,
        "top_p": Kind.NUMBER,
        "top_k": Kind.INTEGER,
        "min_p": Kind.NUMBER,
        "repetition_penalty": Kind.NUMBER,
        "seed": Kind.INTEGER,
        "stop": Kind.STRINGS,
        "arrival_s": Kind.NUMBER,
        "owner": Kind.TEXT,
        "max_draft_tokens": Kind.INTEGER,
    }
)

PASSED_ON = frozenset({"owner"})
"""Known columns that pass through as well, since the output says nothing of its own about them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column of a table plays which part.

    Attributes:
        known: Our name → the table's name, for the columns that are present and typed.
        carried: The table's other columns, which pass through untouched, in table order.
        tz: Zone of timestamps that carry none.
        template: Makes the prompt out of columns, which pass through as well.
    """

    known: Mapping[str, str]
    carried: tuple[str, ...]
    tz: str | None
    template: Template | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The table's columns that :func:`canonical` looks at."""
        templated = () if self.template is None else self.template.columns
        return tuple(dict.fromkeys([*self.known.values(), *templated]))


def plan_layout(
    schema: pa.Schema,
    renamed: Mapping[str, str],
    tz: str | None,
    file: str,
    template: Template | None = None,
) -> Layout:
    """Check the table as a whole.

    Args:
        schema: Of the table.
        renamed: Our name → the table's name, where they differ.
        tz: Zone of timestamps that carry none.
        file: For messages.
        template: Makes the prompt; columns ``prompt`` and ``messages`` are then like any other.

    Raises:
        ConfigError: ``renamed`` or ``tz`` name something that does not exist.
        InputError: No prompt column, or a column of the wrong type.
    """
    for ours, theirs in renamed.items():
        if ours not in KINDS:
            hint = hints.not_ours(ours, theirs, list(KINDS))
            raise ConfigError(f"columns: `{ours}` is not an input column", hint)
    _check_zone(tz)
    prompts = {"prompt", "messages"}
    names = {ours: renamed.get(ours, ours) for ours in KINDS if template is None or ours not in prompts}
    _check_unique(schema, file)
    for ours, theirs in renamed.items():
        if theirs not in schema.names:
            what = f"{file}: no column `{theirs}` (mapped to `{ours}`)"
            raise InputError(what, hints.missing(theirs, schema))
    known: dict[str, str] = {}
    for ours, theirs in names.items():
        if theirs in schema.names and not pa.types.is_null(schema.field(theirs).type):
            _check_type(ours, schema.field(theirs), tz, file)
            known[ours] = theirs
    if template is not None:
        template.check(schema, file)
    elif not prompts & set(known):
        raise InputError(f"{file}: no column `prompt` or `messages`", _no_prompt_hint(schema))
    taken = {theirs for ours, theirs in names.items() if ours not in PASSED_ON}
    carried = tuple(name for name in schema.names if name not in taken)
    return Layout(MappingProxyType(known), carried, tz, template)


def canonical(batch: pa.RecordBatch, layout: Layout, file: str) -> pa.RecordBatch:
    """The known columns under our names and in few types; the prompt as the template makes it.

    Text becomes ``large_binary`` (invalid UTF-8 is one row's fault, found when it is decoded), numbers
    ``float64``, timestamps ``float64`` seconds since 1970 in UTC (exact to the microsecond); the rest
    stays as it is.

    Raises:
        InputError: A value does not fit, e.g. a timestamp beyond the year 294246.
    """
    columns: dict[str, pa.Array] = {} if layout.template is None else layout.template.render(batch)
    for ours, theirs in layout.known.items():
        try:
            columns[ours] = _CASTS[KINDS[ours]](batch.column(theirs), layout.tz)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{file}: column `{theirs}`: {error}", "correct the value and run again"
            ) from None
    return pa.RecordBatch.from_pydict(columns)


def _check_zone(tz: str | None) -> None:
    try:
        if tz is not None:
            ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            f"tz '{tz}' is not a time zone", "use a name such as UTC or Europe/Lisbon"
        ) from None


def _check_unique(schema: pa.Schema, file: str) -> None:
    for name in schema.names:
        if len(schema.get_all_field_indices(name)) > 1:
            raise InputError(f"{file}: column `{name}` exists more than once", "rename one of them")


def _no_prompt_hint(schema: pa.Schema) -> str:
    texts = [field.name for field in schema if _is_text(field.type)]
    conversations = [field.name for field in schema if _is_messages(field.type)]
    return hints.no_prompt(texts, conversations, schema)


def _check_type(ours: str, field: pa.Field, tz: str | None, file: str) -> None:
    kind = KINDS[ours]
    if kind is Kind.TIMESTAMP and pa.types.is_timestamp(field.type) and field.type.tz is None and tz is None:
        raise InputError(
            f"{file}: column `{field.name}` holds timestamps without time zone",
            "say which zone they mean with --tz",
        )
    if not _ACCEPTS[kind](field.type):
        what = f"{file}: column `{field.name}` is {field.type}, expected {kind.value}"
        raise InputError(what, hints.wrong_type(ours, kind.value, field, _is_text))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_text_or_null(kind: pa.DataType) -> bool:
    """Of a table whose lists are all empty, nobody knows what is in them."""
    return _is_text(kind) or bool(pa.types.is_null(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_messages(kind: pa.DataType) -> bool:
    if not _is_list(kind):
        return False
    turn = kind.value_type
    return bool(pa.types.is_map(turn)) or (pa.types.is_struct(turn) and turn.get_field_index("role") >= 0)


_INT64_DIGITS = 18
_PER_SECOND: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e3, "us": 1e6})

_ACCEPTS: Mapping[Kind, Callable[[pa.DataType], bool]] = MappingProxyType(
    {
        Kind.TEXT: _is_text,
        Kind.ID: lambda kind: _is_text(kind) or bool(pa.types.is_integer(kind)),
        Kind.MESSAGES: _is_messages,
        Kind.INTEGER: _is_number,
        Kind.NUMBER: _is_number,
        Kind.TIMESTAMP: lambda kind: bool(pa.types.is_timestamp(kind)),
        Kind.STRINGS: lambda kind: _is_list(kind) and _is_text_or_null(kind.value_type),
    }
)


def _cast_text(column: pa.Array, _tz: str | None) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _cast_number(column: pa.Array, _tz: str | None) -> pa.Array:
    return column.cast(pa.float64(), safe=False)


def _cast_integer(column: pa.Array, _tz: str | None) -> pa.Array:
    """Floats stay floats: tables with nulls often hold integers that way, and 2.5 is the row's fault."""
    kind = column.type
    if not pa.types.is_decimal(kind):
        return column
    fits = kind.scale == 0 and kind.precision <= _INT64_DIGITS
    return column.cast(pa.int64()) if fits else _cast_number(column, _tz)


def _cast_timestamp(column: pa.Array, tz: str | None) -> pa.Array:
    if column.type.tz is None:
        column = pc.assume_timezone(column, tz, ambiguous="earliest", nonexistent="latest")
    if column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    # Numbers, not finer timestamps: the end of time in milliseconds, in microseconds, is in the past.
    ticks = column.cast(pa.int64()).cast(pa.float64(), safe=False)
    return pc.divide(ticks, _PER_SECOND[column.type.unit])


def _keep(column: pa.Array, _tz: str | None) -> pa.Array:
    return column


_CASTS: Mapping[Kind, Callable[[pa.Array, str | None], pa.Array]] = MappingProxyType(
    {
        Kind.TEXT: _cast_text,
        Kind.ID: _cast_text,
        Kind.MESSAGES: _keep,
        Kind.INTEGER: _cast_integer,
        Kind.NUMBER: _cast_number,
        Kind.TIMESTAMP: _cast_timestamp,
        Kind.STRINGS: _keep,
    }
)
