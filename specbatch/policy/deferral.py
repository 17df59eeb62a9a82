"""Who sits a step out so that others keep their promises: a shorter step is a faster one.

A step costs every row in it time, and a row that is behind its promise cannot wait for tokens of rows
that have all the time in the world. Such rows may sit out, the most relaxed first, as few of them as will
do: what they miss they get later, when those in a hurry are ahead or done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specbatch.rows import Row

_WORTH = 0.1
"""Share of what resting can help at most that it may leave undone."""

_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class Seat:
    """One row's work in a step that has been planned.

    Attributes:
        row: The row.
        prefill: Tokens to compute before its next token is due; 0 for one that decodes.
        slack_s: Seconds for which it may stand still and then keep its promises by plain decoding.
        rested: Steps in a row that it has sat out already.
        most: Steps in a row that it may sit out.
    """

    row: Row
    prefill: int
    slack_s: float
    rested: int
    most: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is predicted of a step.

    Attributes:
        step_s: Its length in seconds.
        missing: Row with a promise → share of what it needs that it lacks; nothing for rows that get
            what they need.
        hopeless: Rows that break a promise whatever they get from steps of this length.
    """

    step_s: float
    missing: Mapping[Row, float]
    hopeless: frozenset[Row] = frozenset()


Predict = Callable[[Sequence[Seat]], Outlook]


def sit_out(seats: Sequence[Seat], predict: Predict) -> frozenset[int]:
    """Which seats stay empty.

    Rows that break a promise even when all who may rest do are rested first. The answer is the shortest
    prefix of the most relaxed rows whose rest helps nearly as much as that of all of them; nobody where
    all have what they need, or where rest helps nobody.

    Args:
        seats: The plan.
        predict: Outlook of a step with some of the seats. Resting longer never helps less, as far as
            this is known.

    Returns:
        Indices of seats; never all of them.
    """
    present = predict(seats)
    if not present.missing:
        return frozenset()
    order = _may_rest(seats, present)

    def without(count: int) -> Outlook:
        resting = set(order[:count])
        return predict([seat for i, seat in enumerate(seats) if i not in resting])

    best = without(len(order))
    forlorn = [i for i, seat in enumerate(seats) if seat.row in best.hopeless and seat.rested < seat.most]
    if forlorn:
        order = forlorn + [i for i in order if i not in forlorn]
        best = without(len(order))
    out = {seats[i].row for i in order}  # nobody is helped by their own rest, whatever is predicted
    kept = (set(best.missing) | set(present.missing)) - best.hopeless - out
    at_best = _total(best, kept)
    helped = _total(present, kept) - at_best
    if helped <= _NOTHING:
        return frozenset()
    low, high = 0, len(order)  # resting `high` is enough, resting `low` is not
    while high - low > 1:
        middle = (low + high) // 2
        if _total(without(middle), kept) <= at_best + _WORTH * helped:
            high = middle
        else:
            low = middle
    return frozenset(order[:high])


def _may_rest(seats: Sequence[Seat], present: Outlook) -> list[int]:
    """Seats that may stay empty, the most relaxed first; prompts before rows that write, then by turns."""
    able = [
        i
        for i, seat in enumerate(seats)
        if seat.row not in present.missing and seat.rested < seat.most and seat.slack_s > present.step_s
    ]
    return sorted(able, key=lambda i: (-seats[i].slack_s, not seats[i].prefill, seats[i].rested, i))


def _total(outlook: Outlook, rows: set[Row]) -> float:
    return sum(share for row, share in outlook.missing.items() if row in rows)
