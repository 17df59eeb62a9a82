"""Who used how much of which tier, and against which quota: what is charged to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from specbatch.report.runs.columns import share, total
from specbatch.report.runs.rows import OWNER

_WITH_TEXT = ("ok", "truncated")


@dataclass(frozen=True, slots=True)
class Use:
    """Of one owner in one tier, or in all.

    Attributes:
        rows: Of the owner; ``None`` as an owner are rows without one.
        failed: Rows without a text.
        output_tokens: Of them.
        verified_tokens: What quotas count: drafted tokens that the target computed, and one for each
            verification.
        device_s: Attributed seconds; ``None`` where rows do not carry them.
        joules: Attributed; ``None`` without a meter.
    """

    rows: int
    failed: int
    output_tokens: int
    verified_tokens: int
    device_s: float | None
    joules: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """One owner.

    Attributes:
        owner: ``None``: rows without one.
        tiers: Tier → use.
        whole: All tiers together.
        quota: Verified tokens per run; ``None`` without a limit.
        recorded_tokens: What the run counted against the quota, unfinished rows included.
        of_quota: ``recorded_tokens / quota``, or the rows' own tokens where nothing was recorded.
    """

    owner: str | None
    tiers: dict[str, Use]
    whole: Use
    quota: int | None
    recorded_tokens: int | None
    of_quota: float | None


def accounts_of(table: pa.Table, config: Mapping[str, object], recorded: Mapping[str, int]) -> list[Account]:
    """Owners by what they used, the largest first, rows without one last; empty where no row has an owner.

    Args:
        table: Rows.
        config: Settings of the job, as in ``run.json``.
        recorded: Owner → tokens that the run counted against a quota.
    """
    names = [name for name in pc.unique(table.column(OWNER)).to_pylist() if name is not None]
    if not names and not recorded:
        return []
    accounts = [_account(table, name, config, recorded) for name in sorted({*names, *recorded})]
    accounts.sort(key=lambda account: -account.whole.verified_tokens)
    nobody = [_account(table, None, config, {})] if table.column(OWNER).null_count else []
    return [*accounts, *nobody]


def _account(
    table: pa.Table, owner: str | None, config: Mapping[str, object], recorded: Mapping[str, int]
) -> Account:
    column = table.column(OWNER)
    mine = table.filter(pc.is_null(column) if owner is None else pc.equal(column, owner))
    tiers = sorted(set(pc.unique(mine.column("tier")).to_pylist()) - {None})
    whole = _use(mine)
    quota = None if owner is None else _quota(config, owner)
    counted = None if owner is None else recorded.get(owner)
    return Account(
        owner=owner,
        tiers={tier: _use(mine.filter(pc.equal(mine.column("tier"), tier))) for tier in tiers},
        whole=whole,
        quota=quota,
        recorded_tokens=counted,
        of_quota=share(whole.verified_tokens if counted is None else counted, quota),
    )


def _quota(config: Mapping[str, object], owner: str) -> int | None:
    owners = config.get("owners")
    limits = owners.get(owner) if isinstance(owners, dict) else None
    quota = limits.get("quota") if isinstance(limits, dict) else None
    return quota if isinstance(quota, int) else None


def _use(rows: pa.Table) -> Use:
    failed = pc.invert(pc.is_in(rows.column("status"), value_set=pa.array(_WITH_TEXT)))
    verified = (total(rows, "verified") or 0.0) + (total(rows, "verifications") or 0.0)
    return Use(
        rows=rows.num_rows,
        failed=int(pc.sum(failed).as_py() or 0),
        output_tokens=int(total(rows, "output_tokens") or 0),
        verified_tokens=int(verified),
        device_s=total(rows, "device_s"),
        joules=total(rows, "energy_j"),
    )
