"""Who sits a step out so that others keep their promises: a shorter step is a faster one.

A step costs every row in it time, and a row that is behind its promise cannot wait for tokens of rows
that have all the time in the world. Such rows may sit out, as few of them as will do: what they miss they get
later, when those in a hurry are ahead or done. Of rows with time enough those rest that have least left to
write, so that as many as possible are there to the end; the others follow, the most relaxed first. Drafted
tokens help too, and cost time themselves: for every number of resting rows it is found out how many of them
promises then need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbatch.policy.need import LUCK_MARGIN, Needs

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

Length = Callable[[Integers, Integers], Floats]
"""Seconds of steps with so many tokens verified and so many prompt tokens; ``[M]`` each."""

_UNDONE = 0.02
"""Share of what rest can help at most that it may leave undone."""

_AS_GOOD = 0.999
"""Share of the best rate that is as good, and lets fewer rows rest."""

_LUCK = 1.5
"""Times what a row may expect of a step that it must need before it is held to be forlorn: drafts are good
for some steps and bad for others."""

_ROUNDS = 4
"""More drafted tokens make the step longer, and a longer step needs more of them: so often."""

_EASY = 4
"""Steps that a row can miss and still keep its promises, from which it is as relaxed as one without any."""

_NOTHING = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """The work of S rows in a step that has been planned.

    Attributes:
        tokens: 1 for rows that write, 0 for prompts, int64 ``[S]``.
        prefill: Tokens of a prompt that are computed, int64 ``[S]``; 0 for rows that write.
        needs: What the rows' promises ask for.
        slack_s: Seconds for which a row may stand still and then keep its promises by plain decoding,
            float64 ``[S]``.
        turn: Among seats that are alike the lowest ones rest first, int64 ``[S]``.
        able: Seats that may stay empty, as far as others have slack for it, bool ``[S]``.
    """

    tokens: Integers
    prefill: Integers
    needs: Needs
    slack_s: Floats
    turn: Integers
    able: NDArray[np.bool_]


def sit_out(seats: Seats, offers: Floats, length: Length) -> frozenset[int]:
    """Which seats stay empty.

    Rows that break a promise even where all who have time rest are rested first; that some of those must
    advance in this step says nothing about the next ones. Of the prefixes of the most relaxed rows whose
    rest helps nearly as much as any, the answer is the one with the most tokens per second; nobody where
    all have what they need, or where rest helps nobody. While somebody can only be saved by good drafts, all
    these rows rest: good ones are followed by bad ones.

    Args:
        seats: The plan.
        offers: Tokens that each seat may expect with 0, 1, … drafted ones verified, rising, float64
            ``[S, C + 1]``.
        length: Predicted length of a step.

    Returns:
        Seats; never all of them.
    """
    whole_s = float(_series(seats, np.zeros(0, dtype=np.int64), length)[0])
    calm = ~seats.needs.lost & (seats.needs.at(whole_s) <= 1.0)
    if calm.all():
        return frozenset()
    with_time = calm & (seats.slack_s > whole_s)
    relaxed = np.flatnonzero(seats.able & with_time)
    hardly = np.minimum(seats.slack_s[relaxed], _EASY * whole_s)
    keys = (relaxed, seats.turn[relaxed], seats.prefill[relaxed] > 0, -hardly)
    order = relaxed[np.lexsort(keys)]
    shortest = float(_series(seats, np.flatnonzero(with_time), length)[-1])
    forlorn = seats.needs.lost | (_LUCK * offers[:, -1] < seats.needs.least_at(shortest) - _NOTHING)
    first = np.flatnonzero(forlorn & seats.able & ~np.isin(np.arange(len(forlorn)), order))
    order = np.concatenate([first, order])
    tight_s = shortest / (1.0 - LUCK_MARGIN)
    drafts = offers[:, -1] > 1.0 + _NOTHING
    if (~calm & drafts & ~forlorn & (seats.needs.least_at(tight_s) > 1.0)).any():
        return frozenset(order.tolist())
    kept = ~forlorn & seats.needs.asking
    kept[order] = False
    lacking, rates = _outlook(seats, (np.flatnonzero(kept), offers), order, length)
    helped = lacking[0] - lacking.min()
    if helped <= _NOTHING:
        return frozenset()
    rates[lacking > lacking.min() + _UNDONE * helped] = 0.0
    count = int(np.argmax(rates >= _AS_GOOD * rates.max()))
    return frozenset(order[:count].tolist())


def _series(seats: Seats, order: Integers, length: Length) -> Floats:
    """Seconds of the step without the first 0, 1, … seats of an order, float64 ``[len(order) + 1]``."""
    return length(*_left(seats, order))


def _left(seats: Seats, order: Integers) -> tuple[Integers, Integers]:
    """Tokens verified and prompt tokens without the first 0, 1, … seats of an order, undrafted."""
    tokens = np.full(len(order) + 1, seats.tokens.sum())
    prefill = np.full(len(order) + 1, seats.prefill.sum())
    tokens[1:] -= seats.tokens[order].cumsum()
    prefill[1:] -= seats.prefill[order].cumsum()
    return tokens, prefill


def _outlook(
    seats: Seats, promised: tuple[Integers, Floats], order: Integers, length: Length
) -> tuple[Floats, Floats]:
    """What comes of the rest of the first 0, 1, … seats of an order.

    Args:
        seats: The plan.
        promised: Seats that are to get what they need, and what everybody could have.
        order: Seats, the first to rest first.
        length: Predicted length of a step.

    Returns:
        Shares of their needs that rows lack, summed, and tokens per second but for the time that prompts
        take; float64 ``[len(order) + 1]`` each.
    """
    here, offers = promised[0], promised[1][promised[0]]
    places, most = np.arange(len(here)), (np.diff(offers, axis=1) > 0.0).sum(axis=1)
    tokens, prefill = _left(seats, order)
    lengths = length(tokens, prefill)
    nodes = np.zeros((len(tokens), len(here)), dtype=np.int64)
    for _ in range(_ROUNDS if most.any() else 0):
        needed, before = seats.needs.at(lengths[:, None, None])[:, here], nodes
        nodes = np.minimum(most, (offers < needed[:, :, None] - _NOTHING).sum(axis=2))
        if np.array_equal(nodes, before):
            break
        lengths = length(tokens + nodes.sum(axis=1), prefill)
    expected = offers[places, nodes]
    needed = seats.needs.at(lengths[:, None, None])[:, here]
    lacking: Floats = np.maximum(0.0, 1.0 - expected / needed).sum(axis=1)
    written = tokens + (expected - 1.0).sum(axis=1)
    prompts = length(tokens, prefill) - length(tokens, np.zeros_like(prefill))
    rates: Floats = written / np.maximum(lengths - prompts, _NOTHING)
    return lacking, rates
