"""In what two runs are unlike, and what of it makes their numbers differ for other reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from specbatch.report.runs.record import RunRecord

_SETTINGS = (
    *(
        "policy",
        "drafter",
        "draft_model",
        "draft_head",
        "threads",
        "max_rows_in_flight",
        "kv_memory",
        "kernels",
    ),
    *("page_size", "prefill_chunk", "prefix_sharing", "tiers", "owners", "late", "draft_budget"),
)
"""Settings that change times and not texts: what one compares runs for."""

_TOLD_ELSEWHERE = ("model_digest", "quantization", "side_digest", "token_ids")
"""Of those that change texts, what the model stands for, and a column."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """Something that is not the same.

    Attributes:
        what: Name of a setting, or ``input``, ``model``, ``machine``.
        first: In the first run, short.
        second: In the second.
        matters: Whether the runs are of different jobs because of it.
    """

    what: str
    first: str
    second: str
    matters: bool


def unlike(first: RunRecord, second: RunRecord) -> list[Unlike]:
    """What is not the same, first what makes the runs different jobs."""
    mine, other = first.manifest, second.manifest
    found = [
        Unlike("input", _input(first), _input(second), True)
        if _fingerprints(first) != _fingerprints(second) or not _fingerprints(first)
        else None,
        _differ("model", _model(mine.model), _model(other.model), matters=True),
    ]
    for name in dict.fromkeys([*mine.identity, *other.identity]):
        if name not in _TOLD_ELSEWHERE:
            found.append(_differ(name, mine.identity.get(name), other.identity.get(name), matters=True))
    found.append(_differ("limit", mine.config.get("limit"), other.config.get("limit"), matters=True))
    found += [_differ(name, mine.config.get(name), other.config.get(name)) for name in _SETTINGS]
    found.append(_differ("machine", mine.hardware, other.hardware))
    found.append(_differ("specbatch", mine.specbatch, other.specbatch))
    return [each for each in found if each is not None]


def _differ(what: str, first: object, second: object, *, matters: bool = False) -> Unlike | None:
    if first == second:
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        names = [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]
        first, second = ({name: each.get(name) for name in names} for each in (first, second))
    return Unlike(what, _short(first), _short(second), matters)


def _fingerprints(record: RunRecord) -> list[object]:
    """Files by content: a copy elsewhere is the same."""
    return [
        [entry.get(name) for name in ("size", "mtime_ns", "rows", "where")] for entry in record.manifest.input
    ]


def _input(record: RunRecord) -> str:
    files = record.manifest.input
    if not files:
        return "unknown"
    counts = [entry.get("rows") for entry in files]
    rows = sum(number for number in counts if isinstance(number, int))
    name = str(files[0].get("path")).rpartition("/")[2]
    return f"{name}{f' and {len(files) - 1} more' if len(files) > 1 else ''} ({rows:,} rows)"


def _model(model: Mapping[str, object]) -> dict[str, object]:
    shown = {name: model.get(name) for name in ("name", "quantization", "digest")}
    return {**shown, "digest": str(shown["digest"])[:12]}


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
