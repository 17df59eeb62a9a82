"""Keeps count of who sits steps out, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbatch.hardware.cost import Costs
from specbatch.policy.base import StepView
from specbatch.policy.deferral import Floats, Integers, Length, Seats, sit_out
from specbatch.policy.lengths import LengthModel
from specbatch.policy.need import NONE, Need, Needs, slack_s
from specbatch.rows import Row
from specbatch.work import PIECE, Work


class Rest:
    """Deferral over a run.

    Args:
        lengths: What rows still have to write.
        min_progress: For each row in how many steps it advances at least once, at least 1.
    """

    def __init__(self, lengths: LengthModel, min_progress: Callable[[Row], int]) -> None:
        self._lengths, self._min_progress = lengths, min_progress
        self._rested: dict[Row, int] = {}  # steps in a row, of those that sat out the last one

    def plan(self, work: Sequence[Work], view: StepView, costs: Costs, needs: Sequence[Need]) -> Plan:
        """A plan as it looks to who decides who sits out.

        Args:
            work: The plan.
            view: The step with all of it.
            costs: Predicted times.
            needs: What each item's row needs.
        """
        writing = {row: i for i, row in enumerate(view.rows)}
        pieces = [
            piece for i, item in enumerate(work) for piece in _pieces(i, item, writing.get(item.row, -1))
        ]
        length = _length(costs, view)
        step_s = float(length(np.array([len(view.rows)]), np.array([view.prefill]))[0])
        remaining = [self._lengths.remaining(item.row) for item in work]
        slack = [slack_s(i.row, view.now, n, step_s) for i, n in zip(work, remaining, strict=True)]
        able = [self._rested.get(item.row, 0) < self._min_progress(item.row) - 1 for item in work]
        seats = Seats(
            tokens=np.array([int(piece.place >= 0) for piece in pieces]),
            prefill=np.array([piece.prefill for piece in pieces]),
            needs=Needs([needs[piece.item] if piece.place >= 0 else NONE for piece in pieces]),
            slack_s=np.array([slack[piece.item] for piece in pieces]),
            turn=np.array([remaining[p.item] if p.place >= 0 else -p.turn for p in pieces]),
            able=np.array([piece.turn > 0 or able[piece.item] for piece in pieces]),
        )
        return Plan(pieces, seats, length)

    def keep(self, work: Sequence[Work], left_out: Mapping[int, int]) -> list[Work]:
        """What is done of a plan, while rows of which nothing is done are counted as resting.

        Args:
            work: The plan.
            left_out: Item → tokens of its work that are not done; nothing for items that are done whole.
        """
        self._rested = {
            work[i].row: self._rested.get(work[i].row, 0) + 1
            for i, count in left_out.items()
            if count == work[i].count
        }
        return done(work, left_out)

    def forget(self, row: Row) -> None:
        """A row has left the engine."""
        self._rested.pop(row, None)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A row that writes (at a place of the view), or part of a prompt (place -1): its turn-th tokens."""

    item: int
    place: int
    prefill: int
    turn: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The work of a step, in pieces.

    Attributes:
        pieces: Rows, and parts of prompts.
        seats: What is known of each.
        length: Predicted length of a step.
    """

    pieces: Sequence[_Piece]
    seats: Seats
    length: Length

    @property
    def hurried(self) -> list[int]:
        """Rows of the view that need more of the whole step than their own next token."""
        seats = self.seats
        step_s = float(self.length(seats.tokens.sum(keepdims=True), seats.prefill.sum(keepdims=True))[0])
        return [self.pieces[i].place for i in np.flatnonzero(seats.needs.at(step_s) > 1.0).tolist()]

    @property
    def beyond_rest(self) -> list[int]:
        """Rows of the view that break a promise by plain decoding even where all without promises rest."""
        needs = self.seats.needs
        step_s = float(self.length(needs.asking.sum(keepdims=True), np.zeros(1, dtype=np.int64))[0])
        return [self.pieces[i].place for i in np.flatnonzero(needs.least_at(step_s) > 1.0).tolist()]

    def left_out(self, offers: Floats, draft_s: float = 0.0) -> dict[int, int]:
        """Whose work is best left out: item → tokens.

        Args:
            offers: Tokens that each row of the view may expect with 0, 1, … drafted ones verified,
                float64 ``[R, C + 1]``.
            draft_s: Seconds that drafting takes.
        """
        at = np.array([piece.place for piece in self.pieces])
        own = np.where(at[:, None] >= 0, offers[at], 1.0)
        left: dict[int, int] = {}
        for i in sit_out(self.seats, own, lambda *tokens: self.length(*tokens) + draft_s):
            piece = self.pieces[i]
            left[piece.item] = left.get(piece.item, 0) + (piece.prefill or 1)
        return left


def done(work: Sequence[Work], left_out: Mapping[int, int]) -> list[Work]:
    """A plan without some of its tokens."""
    counts = [item.count - left_out.get(i, 0) for i, item in enumerate(work)]
    return [
        item if count == item.count else replace(item, count=count)
        for item, count in zip(work, counts, strict=True)
        if count
    ]


def _pieces(i: int, item: Work, place: int) -> list[_Piece]:
    if place >= 0:
        return [_Piece(i, place, 0, 0)]
    starts = range(0, item.count, PIECE)
    return [_Piece(i, -1, min(PIECE, item.count - start), turn) for turn, start in enumerate(starts)]


def _length(costs: Costs, view: StepView) -> Length:
    """Lengths of steps with part of the work, and no more drafted tokens than the budget has."""
    rows, most = len(view.rows), len(view.rows) + view.budget
    context = sum(row.committed for row in view.rows) / rows
    curve = costs.verify_curve(most, context, rows)

    def length(tokens: Integers, prefill: Integers) -> Floats:
        lengths: Floats = curve[np.minimum(tokens, most)] + costs.around_s
        return lengths + costs.beside_s(prefill) if view.prefill else lengths

    return length
