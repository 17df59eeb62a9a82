"""Columns of rows as plain arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def numbers(table: pa.Table, name: str) -> Floats:
    """A column of numbers, ``[rows]``; NaN where it is null."""
    column = pc.fill_null(table.column(name).cast(pa.float64()), float("nan"))
    found: Floats = column.to_numpy()
    return found


def amounts(table: pa.Table, name: str) -> Floats:
    """A column of counts or costs, ``[rows]``; 0 where it is null: the row had none."""
    return np.nan_to_num(numbers(table, name))


def moments(table: pa.Table, name: str) -> Floats:
    """A column of timestamps as Unix seconds, ``[rows]``; NaN where it is null."""
    column = table.column(name).cast(pa.int64())
    found: Floats = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy() / 1e6
    return found


def known(table: pa.Table, name: str) -> bool:
    """Whether any row has a value."""
    return bool(table.column(name).null_count < table.num_rows)


def total(table: pa.Table, name: str) -> float | None:
    """Sum of a column; ``None`` where no row has a value: it was not measured."""
    return float(np.nansum(numbers(table, name))) if known(table, name) else None


def tiers_of(table: pa.Table) -> list[str]:
    """Names of the tiers that rows asked for, sorted."""
    return sorted(set(pc.unique(table.column("tier")).to_pylist()) - {None})


def of_tier(table: pa.Table, tier: str) -> pa.Table:
    """The rows of one tier."""
    return table.filter(pc.equal(table.column("tier"), tier))


def share(part: float | None, whole: float | None) -> float | None:
    """A quotient; ``None`` where one is unknown or there is nothing to divide by."""
    return part / whole if part is not None and whole else None
