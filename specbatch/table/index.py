"""The scheduling index: 54 bytes per row, filled by one pass over the input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbatch.errors import RowFault
from specbatch.table.ids import FilePlaces, first_with_id, id_hashes
from specbatch.table.keys import Keys, as_keys, base_key, final_keys, params_bytes
from specbatch.table.parse import PARAMETER_RULES, RowParser, plain
from specbatch.table.template import FAULT

NO_TIER = -1
"""Code of a tier that the job does not have."""

_PARAMETERS = (*PARAMETER_RULES, "stop")


@dataclass(frozen=True, slots=True)
class RowIndex:
    """What the scheduler knows of every row, in input order; all arrays ``[N]``.

    Rows at fault have arrival 0 and no deadline in the columns that are wrong: they are looked at
    first and found out when they are fetched.

    Attributes:
        keys: Resume keys, ``V16``.
        arrival: Seconds on the run clock.
        deadline: Seconds on the run clock, ``inf`` without one.
        tpot_ms: float32, NaN without SLO.
        ttft_ms: float32, NaN without SLO.
        priority: Of the row's tier, int16.
        tier: The tier that the row runs under: index into the parser's tiers, int16.
        asked: The tier that it asked for; differs where its owner may not use that. -1: none of the job's.
        same_id: The first row of the job with the same ``id``, int64; -1 where no earlier row has it.
        files: Which rows of the job are in which file; no array.
    """

    keys: Keys
    arrival: NDArray[np.float64]
    deadline: NDArray[np.float64]
    tpot_ms: NDArray[np.float32]
    ttft_ms: NDArray[np.float32]
    priority: NDArray[np.int16]
    tier: NDArray[np.int16]
    asked: NDArray[np.int16]
    same_id: NDArray[np.int64]
    files: FilePlaces

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: NDArray[np.int64]) -> RowIndex:
        """Some of the rows, in the given order."""
        arrays = [column.name for column in fields(self) if column.name != "files"]
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


@dataclass(frozen=True, slots=True)
class Schedule:
    """The scheduling columns of one batch; fields as in :class:`RowIndex`."""

    arrival: NDArray[np.float64]
    deadline: NDArray[np.float64]
    tpot_ms: NDArray[np.float32]
    ttft_ms: NDArray[np.float32]
    tier: NDArray[np.int16]
    asked: NDArray[np.int16]


class IndexBuilder:
    """Collects batches of canonical columns into a :class:`RowIndex`."""

    def __init__(self, parser: RowParser) -> None:
        self._parser = parser
        self._keys = bytearray()
        self._ids = bytearray()
        self._schedules: list[Schedule] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """Add the next rows of the input."""
        self._keys += b"".join(base_keys(batch, self._parser))
        self._ids += b"".join(id_hashes(batch))
        self._schedules.append(schedule(batch, self._parser))

    def build(self, files: FilePlaces) -> RowIndex:
        """The finished index of a job over some files."""
        parts = self._schedules or [
            schedule(pa.RecordBatch.from_pydict({"prompt": pa.array([], "binary")}), self._parser)
        ]
        tier = np.concatenate([part.tier for part in parts])
        priorities = np.array([tier.priority for tier in self._parser.tiers.values()], np.int16)
        return RowIndex(
            keys=final_keys(as_keys(bytes(self._keys))),
            arrival=np.concatenate([part.arrival for part in parts]),
            deadline=np.concatenate([part.deadline for part in parts]),
            tpot_ms=np.concatenate([part.tpot_ms for part in parts]),
            ttft_ms=np.concatenate([part.ttft_ms for part in parts]),
            priority=priorities[tier],
            tier=tier,
            asked=np.concatenate([part.asked for part in parts]),
            same_id=first_with_id(as_keys(bytes(self._ids))),
            files=files,
        )


def base_keys(batch: pa.RecordBatch, parser: RowParser) -> Iterator[bytes]:
    """Hash of prompt and parameters of each row, occurrences not yet told apart."""

    @lru_cache(maxsize=4096)
    def spelled(*values: object) -> bytes:
        cells = dict(zip(names, values, strict=True))
        return _spell_params(parser, cells)

    names = [name for name in _PARAMETERS if name in batch.schema.names]
    columns = [_hashable(batch.column(name)) for name in names]
    constant = _spell_params(parser, {})
    for row, content in enumerate(_contents(batch)):
        yield base_key(spelled(*(column[row] for column in columns)) if columns else constant, content)


def schedule(batch: pa.RecordBatch, parser: RowParser) -> Schedule:
    """Scheduling columns of a batch, vectorised."""
    tiers = list(parser.tiers.values())
    asked, default = _tier_codes(batch, parser), list(parser.tiers).index(parser.default_tier)
    code = _allowed(batch, parser, np.where(asked == NO_TIER, default, asked))
    arrival = _numbers(batch, "arrival_s")
    arrival = np.where(np.isfinite(arrival) & (arrival >= 0), arrival, 0.0)
    own = np.fmin(_finite(batch, "deadline") - parser.epoch, _finite(batch, "deadline_s"))
    of_tier = np.where(asked == NO_TIER, len(tiers), code)  # one behind the last promises nothing
    tier_deadline = np.array([*(_or_nan(tier.deadline_s) for tier in tiers), np.nan])[of_tier] + arrival
    deadline = np.fmin(np.where(np.isnan(own), tier_deadline, own), _or_nan(parser.until))
    tpot, ttft = _numbers(batch, "tpot_slo_ms"), _numbers(batch, "ttft_slo_ms")
    tier_tpot = np.array([*(_or_nan(tier.tpot_slo_ms) for tier in tiers), np.nan])[of_tier]
    tier_ttft = np.array([*(_or_nan(tier.ttft_slo_ms) for tier in tiers), np.nan])[of_tier]
    return Schedule(
        arrival=arrival,
        deadline=np.where(np.isnan(deadline), np.inf, deadline),
        tpot_ms=_single(np.where(np.isnan(tpot), tier_tpot, tpot)),
        ttft_ms=_single(np.where(np.isnan(ttft), tier_ttft, ttft)),
        tier=code,
        asked=asked,
    )


def schedule_reference(batch: pa.RecordBatch, parser: RowParser) -> Schedule:
    """Slow twin of :func:`schedule`, through the parser that :meth:`InputTable.fetch` uses.

    Raises:
        RowFault: A row is at fault; the fast twin skips faulty columns instead.
    """
    rows = [parser.parse(index, "", cells) for index, cells in enumerate(batch.to_pylist())]
    names = list(parser.tiers)
    return Schedule(
        arrival=np.array([row.arrival for row in rows]),
        deadline=np.array([np.inf if row.slo.deadline is None else row.slo.deadline for row in rows]),
        tpot_ms=np.array([_or_nan(row.slo.tpot_ms) for row in rows], np.float32),
        ttft_ms=np.array([_or_nan(row.slo.ttft_ms) for row in rows], np.float32),
        tier=np.array([names.index(row.tier) for row in rows], np.int16),
        asked=np.array(
            [names.index(row.demotion.asked if row.demotion else row.tier) for row in rows], np.int16
        ),
    )


def _spell_params(parser: RowParser, cells: Mapping[str, object]) -> bytes:
    """Canonical parameters; a faulty row is told apart by its fault."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in cells.items()}
    try:
        return params_bytes(parser.params(values))
    except RowFault as fault:
        return f"fault {fault.message}".encode()


def _hashable(column: pa.Array) -> list[object]:
    return [tuple(value) if isinstance(value, list) else value for value in _decoded(column)]


def _contents(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Prompt and conversation of each row as bytes; an absent one differs from an empty one."""
    none: list[object] = [None] * batch.num_rows
    prompts = batch.column("prompt").to_pylist() if "prompt" in batch.schema.names else none
    turns = _decoded(batch.column("messages")) if "messages" in batch.schema.names else none
    faults = batch.column(FAULT).to_pylist() if FAULT in batch.schema.names else none
    for prompt, conversation, fault in zip(prompts, map(plain, turns), faults, strict=True):
        spelled = b"" if prompt is None else b"p" + prompt
        spelled += b"" if fault is None else b"f" + fault
        if conversation is not None:
            text = json.dumps(
                conversation, sort_keys=True, ensure_ascii=False, default=str, separators=(",", ":")
            )
            spelled += b"m" + text.encode(errors="surrogatepass")
        yield spelled


def _decoded(column: pa.Array) -> list[object]:
    """A column as Python values; nested text that is not UTF-8 makes its row a string that says so."""
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        return [_one_decoded(column, row) for row in range(len(column))]
    return values


def _one_decoded(column: pa.Array, row: int) -> object:
    try:
        return column[row].as_py()
    except UnicodeDecodeError as error:
        return f"undecodable {error.object!r}"


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.float64]:
    """A numeric column as float64 ``[N]``; NaN where null or absent."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, np.nan)
    values: NDArray[np.float64] = batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32; what is too large for that becomes infinite, which keeps its meaning as a limit."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _finite(batch: pa.RecordBatch, name: str) -> NDArray[np.float64]:
    values = _numbers(batch, name)
    return np.where(np.isfinite(values), values, np.nan)


def _tier_codes(batch: pa.RecordBatch, parser: RowParser) -> NDArray[np.int16]:
    """The tiers that rows ask for, ``NO_TIER`` where there is no such tier, ``[N]``."""
    default = list(parser.tiers).index(parser.default_tier)
    if "tier" not in batch.schema.names:
        return np.full(batch.num_rows, default, np.int16)
    known = pa.array([name.encode() for name in parser.tiers], pa.large_binary())
    names = batch.column("tier")
    codes = pc.if_else(pc.is_null(names), default, pc.fill_null(pc.index_in(names, value_set=known), NO_TIER))
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int16)


def _allowed(batch: pa.RecordBatch, parser: RowParser, asked: NDArray[np.int16]) -> NDArray[np.int16]:
    """Tiers as the rows' owners may use them; the default tier instead of others, ``[N]``."""
    if "owner" not in batch.schema.names or not parser.owners:
        return asked
    names, tiers = list(parser.owners), list(parser.tiers)
    known = pa.array([name.encode() for name in names], pa.large_binary())
    owner = pc.fill_null(pc.index_in(batch.column("owner"), value_set=known), len(names))
    may = np.array([[parser.allows(name, tier) for tier in tiers] for name in (*names, None)])
    allowed = may[np.asarray(owner.to_numpy(zero_copy_only=False)), asked]
    return np.where(allowed, asked, tiers.index(parser.default_tier)).astype(np.int16)


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
