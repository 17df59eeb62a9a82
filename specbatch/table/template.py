"""``--template``: a prompt put together from columns of the table, in the notation of ``str.format``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Formatter

import pyarrow as pa

from specbatch.errors import ConfigError, InputError, RowFault
from specbatch.table.hints import missing

FAULT = "template_fault"
"""Canonical column with the reason why a row's template cannot be filled in; null where it can."""

_WIDTH_DIGITS = 6  # a width of 100000 and more fills no prompt and can fill the memory
_HINT = "name columns in braces, as in 'Summarise: {body}'; write braces of the text twice: {{ }}"


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template.

    Attributes:
        text: As the user wrote it.
        columns: The table's columns in it, in order of first appearance.
    """

    text: str
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a template.

        Attributes and items of values (``{a.b}``, ``{a[0]}``) are not offered: in ``str.format`` they
        reach into Python objects.

        Raises:
            ConfigError: It is malformed or names no column.
        """
        try:
            pieces = list(Formatter().parse(text))
            nested = [piece for _, _, spec, _ in pieces for piece in Formatter().parse(spec or "")]
        except ValueError as error:
            raise ConfigError(f"template: {error}: {text}", _HINT) from None
        names = [name for _, name, _, _ in pieces if name is not None]
        wide = [spec for _, _, spec, _ in pieces if re.search(rf"\d{{{_WIDTH_DIGITS},}}", spec or "")]
        if wide:
            raise ConfigError(f"template: the format `{wide[0]}` makes values too long: {text}", _HINT)
        bad = [name for name in names if not name or any(sign in name for sign in ".[") or name.isdigit()]
        if bad or not names or any(name is not None for _, name, _, _ in nested):
            what = f"`{{{bad[0]}}}` is not a column name" if bad else "no column in it that can be filled in"
            raise ConfigError(f"template: {what}: {text}", _HINT)
        return cls(text, tuple(dict.fromkeys(names)))

    def check(self, schema: pa.Schema, file: str) -> None:
        """Raise ``InputError`` if a column does not exist."""
        for name in self.columns:
            if name not in schema.names:
                what = f"{file}: no column `{name}` (in template: {self.text})"
                raise InputError(what, missing(name, schema))

    def render(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Canonical columns ``prompt`` and :data:`FAULT` of a batch that has the template's columns."""
        columns = [_values(batch.column(name)) for name in self.columns]
        prompts: list[bytes | None] = []
        faults: list[bytes | None] = []
        for values in zip(*columns, strict=True):
            try:
                prompts.append(self._fill(values))
                faults.append(None)
            except RowFault as fault:
                prompts.append(None)
                faults.append(fault.message.encode(errors="replace"))
        return {
            "prompt": pa.array(prompts, pa.large_binary()),
            FAULT: pa.array(faults, pa.large_binary()),
        }

    def _fill(self, values: tuple[object, ...]) -> bytes:
        """One row's prompt, or ``RowFault``."""
        cells = dict(zip(self.columns, values, strict=True))
        for name, value in cells.items():
            if value is None:
                raise RowFault("template_error", f"column `{name}` is null, and the template needs it")
            if isinstance(value, UnicodeDecodeError):
                raise RowFault(
                    "template_error", f"column `{name}` is not UTF-8 ({value.reason}); re-encode it"
                )
        try:
            return self.text.format_map(cells).encode()
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, UnicodeEncodeError) as error:
            raise RowFault("template_error", f"the template cannot be filled in: {error}") from None


def _values(column: pa.Array) -> list[object]:
    """A column as Python values; an error stands for text that is not UTF-8."""
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        return [_value(item) for item in column]
    return values


def _value(item: pa.Scalar) -> object:
    try:
        return item.as_py()
    except UnicodeDecodeError as error:
        return error
