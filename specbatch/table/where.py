"""``--where``: which rows belong to the job, in the small part of SQL that describes one row.

    expression = conjunction, {"or", conjunction} ;    conjunction = negation, {"and", negation} ;
    negation   = "not", negation | "(", expression, ")" | comparison ;
    comparison = operand, ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" | ["not"] "like"), operand
               | operand, ["not"], "in", "(", operand, {",", operand}, ")" | operand, "is", ["not"], "null" ;
    operand    = name | "name" | 'text' | number | "true" | "false" ;

As in SQL, a comparison with null is neither true nor false, and only rows where the whole is true are
kept. Text is compared with timestamps, dates and times by reading it as one (``day >= '2026-07-01'``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from specbatch.errors import ConfigError, InputError
from specbatch.table.hints import missing_in_where

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")+"|`[^`]+`)
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)|(?P<word>[^\W\d]\w*(?:\.\w+)*))""",
    re.VERBOSE,
)
_COMPARISONS: Mapping[str, Callable[[pa.Array, pa.Array], pa.Array]] = MappingProxyType(
    {
        "=": pc.equal,
        "==": pc.equal,
        "!=": pc.not_equal,
        "<>": pc.not_equal,
        "<": pc.less,
        "<=": pc.less_equal,
        ">": pc.greater,
        ">=": pc.greater_equal,
    }
)
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "true", "false"})
_DEEPEST = 50
_EXAMPLE = "write it like --where \"lang = 'en' and score > 3\""

Value = Any
"""An Arrow array or scalar; Arrow ships no types."""

Part = Callable[[pa.RecordBatch], Value]
"""A piece of the expression: batch of ``n`` rows → ``n`` values, or one for all."""


@dataclass(frozen=True, slots=True)
class Where:
    """A parsed expression.

    Attributes:
        text: As the user wrote it.
        columns: The table's columns that it looks at.
    """

    text: str
    columns: tuple[str, ...]
    _predicate: Part

    @classmethod
    def parse(cls, text: str) -> Where:
        """Read an expression.

        Raises:
            ConfigError: It is not one; the message shows where it goes wrong.
        """
        parser = _Parser(text)
        predicate = parser.whole()
        return cls(text, tuple(dict.fromkeys(parser.columns)), predicate)

    def check(self, schema: pa.Schema, file: str) -> None:
        """Try the expression on a table without rows.

        Raises:
            InputError: A column does not exist, or is compared with something of another kind.
        """
        for name in self.columns:
            if name not in schema.names:
                what = f"{file}: no column `{name}` (in where: {self.text})"
                raise InputError(what, missing_in_where(name, self.text, schema))
        empty = [pa.array([], schema.field(name).type) for name in self.columns]
        self.keep(pa.RecordBatch.from_arrays(empty, names=list(self.columns)), file)

    def keep(self, batch: pa.RecordBatch, file: str) -> pa.RecordBatch:
        """The rows for which the expression is true, all columns.

        Raises:
            InputError: Values cannot be compared.
        """
        try:
            mask = self._predicate(batch)
            if isinstance(mask, pa.Scalar):
                mask = pa.repeat(mask, batch.num_rows)
            if not pa.types.is_boolean(mask.type):
                raise InputError(f"{file}: where does not say true or false: {self.text}", _EXAMPLE)
            return batch.filter(mask)
        except (pa.ArrowException, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{file}: where cannot be applied: {self.text}: {reason}",
                "compare columns with values of their own type: numbers bare, text in single quotes",
            ) from None


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """Recursive descent over the grammar above."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._place = 0
        self._depth = 0
        self.columns: list[str] = []

    def whole(self) -> Part:
        predicate = self._either()
        if self._peek().kind != "end":
            raise self._wrong("`and`, `or` or the end")
        return predicate

    def _scan(self) -> list[_Token]:
        tokens, place = [], 0
        while place < len(self._text.rstrip()):
            match = _TOKEN.match(self._text, place)
            if match is None or match.lastgroup is None:
                raise ConfigError(
                    f"where: cannot read from here: {self._text[place:].strip()[:40]}", _EXAMPLE
                )
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            place = match.end()
        return [*tokens, _Token("end", "", len(self._text))]

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._peek()
        self._place += token.kind != "end"
        return token

    def _accept(self, *words: str) -> bool:
        """Step over the words if they come next, in this order."""
        ahead = self._tokens[self._place : self._place + len(words)]
        if [token.text.lower() for token in ahead if token.kind in ("word", "sign")] != list(words):
            return False
        self._place += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._wrong(f"`{word}`")

    def _wrong(self, wanted: str) -> ConfigError:
        token = self._peek()
        found = f"`{self._text[token.start :][:30]}`" if token.text else "the end"
        return ConfigError(f"where: expected {wanted}, found {found}", _EXAMPLE)

    def _either(self) -> Part:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"where: more than {_DEEPEST} levels of brackets", "write it more simply")
        parts = [self._both()]
        while self._accept("or"):
            parts.append(self._both())
        self._depth -= 1
        return _folded(pc.or_kleene, parts)

    def _both(self) -> Part:
        parts = [self._negation()]
        while self._accept("and"):
            parts.append(self._negation())
        return _folded(pc.and_kleene, parts)

    def _negation(self) -> Part:
        negated = False
        while self._accept("not"):
            negated = not negated
        if self._accept("("):
            inner = self._either()
            self._expect(")")
        else:
            inner = self._comparison()
        return _negated(inner) if negated else inner

    def _comparison(self) -> Part:
        left = self._operand()
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return (
                (lambda batch: pc.is_valid(left(batch)))
                if negated
                else (lambda batch: pc.is_null(left(batch)))
            )
        negated = self._accept("not")
        if self._accept("in"):
            found = _folded(pc.or_kleene, [_compared(pc.equal, left, item) for item in self._list()])
        elif self._accept("like"):
            found = self._like(left)
        elif not negated and self._peek().text in _COMPARISONS:
            return _compared(_COMPARISONS[self._next().text], left, self._operand())
        elif not negated:
            return left
        else:
            raise self._wrong("`in` or `like`")
        return _negated(found) if negated else found

    def _like(self, left: Part) -> Part:
        token = self._next()
        if token.kind != "text":
            self._place -= 1
            raise self._wrong("a pattern in single quotes")
        pattern = _unquoted(token.text)
        return lambda batch: pc.match_like(left(batch), pattern)

    def _list(self) -> Sequence[Part]:
        self._expect("(")
        items = [self._operand()]
        while self._accept(","):
            items.append(self._operand())
        self._expect(")")
        return items

    def _operand(self) -> Part:
        token = self._peek()
        if token.kind == "number":
            return _constant(self._number(self._next().text))
        if token.kind == "text":
            return _constant(_unquoted(self._next().text))
        if token.kind == "word" and token.text.lower() in ("true", "false"):
            return _constant(self._next().text.lower() == "true")
        if token.kind == "name" or (token.kind == "word" and token.text.lower() not in _WORDS):
            name = _unquoted(self._next().text) if token.kind == "name" else self._next().text
            self.columns.append(name)
            return lambda batch: _plain(batch.column(name))
        raise self._wrong("a column or a value")

    @staticmethod
    def _number(text: str) -> int | float:
        whole = re.fullmatch(r"[+-]?\d{1,18}", text)  # what a 64-bit integer holds
        return int(text) if whole else float(text)


def _constant(value: str | float | bool) -> Part:
    scalar = pa.scalar(value)
    return lambda _batch: scalar


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _negated(part: Part) -> Part:
    return lambda batch: pc.invert(part(batch))


def _folded(join: Callable[[Value, Value], Value], parts: Sequence[Part]) -> Part:
    def predicate(batch: pa.RecordBatch) -> Value:
        value = parts[0](batch)
        for part in parts[1:]:
            value = join(value, part(batch))
        return value

    return predicate


def _compared(compare: Callable[[Value, Value], Value], left: Part, right: Part) -> Part:
    def predicate(batch: pa.RecordBatch) -> Value:
        one, other = left(batch), right(batch)
        return compare(_as_time(one, other.type), _as_time(other, one.type))

    return predicate


def _as_time(value: Value, other: pa.DataType) -> Value:
    """Text beside a point in time is read as one."""
    is_text = isinstance(value, pa.Scalar) and pa.types.is_string(value.type)
    return value.cast(other) if is_text and pa.types.is_temporal(other) else value
