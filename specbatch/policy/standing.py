"""A choice and how long it stands; who is in a hurry in a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specbatch.policy.menu import NOTHING, Choice, Prospect
from specbatch.policy.rest import Plan
from specbatch.rows import Row

_FEW = 8
"""The choice is weighed again once more than one row in so many has come or gone."""

_ASKING = 0.05
"""Share by which drafts must be expected to raise tokens per second to be worth asking for in every step."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A choice, of which rows it was made, which of them it gives drafts, and how many steps it stands."""

    choice: Choice = NOTHING
    rows: frozenset[Row] = frozenset()
    gaining: frozenset[Row] = frozenset()
    until: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A choice that was looked at, the rows that would take part in its step, and whose work is left out."""

    prospect: Prospect
    rows: Sequence[Row]
    left_out: dict[int, int]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Rows that need more of a step than their next token; those that nobody's rest can help."""

    hurried: frozenset[Row] = frozenset()
    stuck: frozenset[Row] = frozenset()


CALM = Crowd()


def crowd_of(plan: Plan, rows: Sequence[Row]) -> Crowd:
    """Who is in a hurry in a step."""
    return Crowd(*(frozenset(rows[i] for i in places) for places in (plan.hurried, plan.beyond_rest)))


def differ(known: frozenset[Row], rows: Iterable[Row]) -> bool:
    """Whether more than a few rows have come or gone."""
    return len(known.symmetric_difference(rows)) > len(known) // _FEW


def standing_of(prospect: Prospect, rows: Sequence[Row], until: int) -> Standing:
    """The choice that was made of some rows, up to a step."""
    selection = prospect.selection
    promised = selection.slo_nodes.any() or selection.rate >= selection.base_rate * (1.0 + _ASKING)
    gaining = np.flatnonzero(selection.taken).tolist() if promised else []
    return Standing(prospect.choice, frozenset(rows), frozenset(rows[i] for i in gaining), until)
