"""Promised times per token that this machine cannot keep, by what it was measured to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch import __version__
from specbatch.config import JobConfig
from specbatch.draft.combination import has_free_drafts
from specbatch.engine.profile_store import readable_profiles
from specbatch.errors import ModelError
from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import FORMAT, NO_DRAFTER, Fingerprint
from specbatch.hardware.processor import processor_name
from specbatch.hardware.threads import usable_cores
from specbatch.models.resolve import find_side_files, resolve_model
from specbatch.policy import make_policy
from specbatch.schedule.acceptance import AT_FIRST
from specbatch.schedule.pace import AT_BEST, Drafting, has_drafter, token_s

_SHORT_CONTEXT = 64
"""Committed tokens of a row that has hardly begun, when a token takes least."""


@dataclass(frozen=True, slots=True)
class PerToken:
    """Promised times per token after the first.

    Attributes:
        rows: With such a promise.
        tightest_ms: The shortest, milliseconds.
        reachable_ms: What a row alone on this machine takes at best, by its profile; ``None`` without one.
        out_of_reach: Rows that are promised less; ``None`` where that cannot be judged.
        first: The first few of them.
        not_judged: Why it cannot; empty where it can, and without such promises.
    """

    rows: int
    tightest_ms: float | None = None
    reachable_ms: float | None = None
    out_of_reach: int | None = None
    first: tuple[int, ...] = ()
    not_judged: str = ""


def per_token(
    config: JobConfig, rows: NDArray[np.int64], tpot_ms: NDArray[np.float32], most: int
) -> PerToken:
    """Judge promises as a run judges a row that is alone, before it has seen what drafts bring.

    Args:
        config: The job.
        rows: Numbers of the rows that are looked at, ``[R]``.
        tpot_ms: What they are promised, milliseconds, ``[R]``; NaN without a promise.
        most: Rows to name.
    """
    is_promised = ~np.isnan(tpot_ms)
    rows, promised = rows[is_promised], tpot_ms[is_promised]
    if not len(rows):
        return PerToken(0)
    tightest = float(promised.min())
    try:
        seconds = _token_s(config)
    except ModelError as error:
        return PerToken(len(rows), tightest, not_judged=error.what)
    if seconds is None:
        reason = f"there is no profile of {config.model} on this machine yet (specbatch profile measures one)"
        return PerToken(len(rows), tightest, not_judged=reason)
    beyond = rows[promised < 1e3 * seconds]
    return PerToken(len(rows), tightest, 1e3 * seconds, len(beyond), tuple(beyond[:most].tolist()))


def _token_s(config: JobConfig) -> float | None:
    """Seconds per token of a row alone, by the profile that promises most; ``None`` without a profile.

    Which kernels, drafter and number format a run would choose only shows when it loads them, so there may be
    several.

    Raises:
        ModelError: The model is incomplete.
    """
    drafts = make_policy(config).largest is not None
    tables = [table for table in readable_profiles() if _holds(table.fingerprint, config, drafts)]
    if not tables or find_side_files(config.model) is None:
        return None
    files = resolve_model(config.model, allow_download=False, report=lambda _line: None)
    model = (files.digest, config.quantize or files.quantization)
    times = [
        _alone_s(table, drafts)
        for table in tables
        if (table.fingerprint.model_digest, table.fingerprint.quantization) == model
    ]
    return min(times, default=None)


def _holds(measured: Fingerprint, config: JobConfig, drafts: bool) -> bool:
    """Whether a profile is of this machine, and of a job like this one, models aside."""
    cores = usable_cores()
    wanted: dict[str, object] = {
        "cores": cores,
        "threads": config.threads or cores,
        "page_size": config.page_size,
        "specbatch": __version__,
        "format": FORMAT,
    }
    if measured.device == "cpu":
        wanted["processor"] = processor_name()
    chosen = {"device": config.device, "dtype": config.dtype}
    wanted |= {name: value for name, value in chosen.items() if value != "auto"}
    found = asdict(measured)
    suits = measured.drafter != NO_DRAFTER or not drafts
    return suits and all(found[name] == value for name, value in wanted.items())


def _alone_s(table: CostTable, drafts: bool) -> float:
    free = has_free_drafts(table.fingerprint.drafter)
    drafting = Drafting(AT_FIRST, free) if drafts and has_drafter(table) else None
    return AT_BEST * token_s(table, 1, _SHORT_CONTEXT, 0, drafting)
