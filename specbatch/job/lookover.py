"""Looking at every row of an input without running it: what ``specbatch validate`` counts."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.errors import RowFault
from specbatch.rows import RawPrompt, SamplingParams
from specbatch.table.parse import PARAMETER_RULES, RowParser, plain
from specbatch.text.encoder import PromptEncoder

_SPECIAL_TOKENS = 2
EXAMPLES = 3
"""Rows that are shown of each kind, at most."""
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """A row, and what is wrong with it."""

    row: int
    message: str


@dataclass(slots=True)
class Fault:
    """Rows that would be refused for one reason.

    Attributes:
        first: The first few of them.
    """

    code: str
    rows: int = 0
    first: list[Example] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows that repeat an earlier one.

    Attributes:
        first: The first few: (row, the row it repeats).
    """

    rows: int
    first: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TextCheck:
    """What looks at texts.

    Attributes:
        encoder: Template and tokenizer; ``None`` while they are not on this machine.
        max_context: Of the model, tokens.
        total: Rows of the input, about.
        sample: How many of them to tokenise; the others only where they might be too long.
    """

    encoder: PromptEncoder | None
    max_context: int
    total: int
    sample: int

    def is_sampled(self, row: int) -> bool:
        """Whether a row is one of ``sample`` rows spread evenly over the input."""
        wanted = min(self.sample, self.total)
        return wanted > 0 and (row + 1) * wanted // self.total > row * wanted // self.total


@dataclass(frozen=True, slots=True)
class _FastParser(RowParser):
    """Remembers parameters: most rows of a table have those of another one."""

    memo: dict[tuple[object, ...], SamplingParams] = field(default_factory=dict)

    def params(self, cells: Mapping[str, object]) -> SamplingParams:
        values = tuple(cells.get(name) for name in PARAMETER_RULES)
        if cells.get("stop") is not None or values not in self.memo:
            found = RowParser.params(self, cells)
            if cells.get("stop") is None and len(self.memo) < _REMEMBERED:
                self.memo[values] = found
            return found
        return self.memo[values]


class Lookover:
    """Sees the batches of the first pass (:class:`specbatch.table.reader.BatchSink`).

    A token covers at least one byte, so a text with fewer bytes than the context has room for fits
    for certain; only the others, and the sample, are tokenised.

    Args:
        parser: Of the job.
        text: How texts are checked.
        picked: Places of a shard's rows in the job, ascending, ``[rows]``; ``None``: all rows are looked at.
            Rows are counted within the shard, and shown by their places.
    """

    def __init__(self, parser: RowParser, text: TextCheck, picked: NDArray[np.int64] | None = None) -> None:
        values = {item.name: getattr(parser, item.name) for item in fields(parser)}
        self._parser, self._text = _FastParser(**values), text
        self._picked, self._seen = picked, 0
        self._overhead: int | None = None
        self._prompts = array("Q")
        self.refused: set[int] = set()
        self.faults: dict[str, Fault] = {}
        self.max_tokens = array("q")
        self.prompt_tokens: dict[int, int] = {}
        self.tokenised = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows of the job."""
        for cells in _rows(self._wanted(batch)):
            row = len(self.max_tokens)
            self._prompts.append(_content_hash(cells))
            try:
                if "undecodable" in cells:
                    raise RowFault("invalid_utf8", "column `messages` is not UTF-8; re-encode it")
                raw = self._parser.parse(row, "", cells)
                self._check_text(raw)
            except RowFault as fault:
                self.max_tokens.append(0)
                self.refuse(fault, row)
            else:
                self.max_tokens.append(raw.params.max_tokens)

    def refuse(self, fault: RowFault, row: int) -> None:
        """Count a row that would not be answered, and leave its work out; the first reason counts."""
        if row in self.refused:
            return
        self.refused.add(row)
        self.max_tokens[row] = 0
        self.prompt_tokens.pop(row, None)
        kind = self.faults.setdefault(fault.code, Fault(fault.code))
        kind.rows += 1
        if len(kind.first) < EXAMPLES:
            kind.first.append(Example(self.place(row), fault.message))

    @property
    def tokenises(self) -> bool:
        """Whether template and tokenizer are on this machine."""
        return self._text.encoder is not None

    @property
    def repeated_prompts(self) -> Repeats:
        """Rows with the prompt or conversation of an earlier row, parameters aside; empty ones left out."""
        found = _repeats(np.frombuffer(self._prompts, np.uint64))
        return Repeats(found.rows, tuple((self.place(row), self.place(first)) for row, first in found.first))

    def place(self, row: int) -> int:
        """Where a row stands in the job."""
        return row if self._picked is None else int(self._picked[row])

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Likewise of several rows, ``[R]`` → ``[R]``."""
        return rows if self._picked is None else self._picked[rows]

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are looked at."""
        if self._picked is None:
            return batch
        first, end = np.searchsorted(self._picked, (self._seen, self._seen + batch.num_rows))
        wanted = batch.take(pa.array(self._picked[first:end] - self._seen))
        self._seen += batch.num_rows
        return wanted

    def _check_text(self, raw: RawPrompt) -> None:
        encoder = self._text.encoder
        if encoder is None:
            return
        if isinstance(raw.content, str):
            size = len(raw.content.encode(errors="surrogatepass")) + self._template_bytes(encoder, raw)
            is_plain = bool(raw.content.strip())
        else:
            # Templates refuse conversations for many reasons, so each is written out.
            size, is_plain = len(encoder.text(raw)[0].encode(errors="surrogatepass")), True
        fits = size + _SPECIAL_TOKENS + raw.params.max_tokens <= self._text.max_context
        is_sampled = self._text.is_sampled(raw.row_index)
        if is_plain and fits and not is_sampled:
            return
        self.tokenised += 1
        prompt = encoder.encode(raw)
        if is_sampled:
            self.prompt_tokens[raw.row_index] = len(prompt.token_ids)

    def _template_bytes(self, encoder: PromptEncoder, raw: RawPrompt) -> int:
        """What the template puts around a prompt, measured at the first one."""
        if self._overhead is None:
            assert isinstance(raw.content, str)
            if not raw.content.strip():
                return 0
            text = encoder.text(raw)[0]
            self._overhead = max(0, len(text.encode()) - len(raw.content.strip().encode()))
        return self._overhead


def _rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, object]]:
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for row in range(batch.num_rows):
        yield _row(batch.slice(row, 1))


def _row(single: pa.RecordBatch) -> Mapping[str, object]:
    try:
        cells: Mapping[str, object] = single.to_pylist()[0]
    except UnicodeDecodeError:
        flat = single.drop_columns(["messages"]) if "messages" in single.schema.names else single
        return {**flat.to_pylist()[0], "undecodable": True}
    return cells


def _content_hash(cells: Mapping[str, object]) -> int:
    """0 without a prompt."""
    prompt, messages = cells.get("prompt"), cells.get("messages")
    spelled = prompt if isinstance(prompt, bytes) else b""
    if messages is not None:
        spelled += b"m" + json.dumps(plain(messages), sort_keys=True, default=str).encode()
    return _hash(spelled) | 1 if spelled else 0


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _repeats(hashes: NDArray[np.uint64]) -> Repeats:
    """Equal numbers, zeros left out: ``[N]``."""
    rows = np.flatnonzero(hashes)
    order = rows[np.argsort(hashes[rows], kind="stable")]
    starts = np.r_[True, hashes[order][1:] != hashes[order][:-1]] if len(order) else np.zeros(0, np.bool_)
    firsts = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
    again = np.flatnonzero(~starts)
    shown = again[np.argsort(order[again])][:EXAMPLES]
    return Repeats(len(again), tuple((int(order[place]), int(firsts[place])) for place in shown))
