"""What steps cost on this machine with this pair of models: measured points, and times between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from specbatch.hardware.correction import PredictionError
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.hardware.points import DraftPoint, PrefillPoint, VerifyPoint, sizes
from specbatch.hardware.surface import Floats, Surface

DISTURBED = 0.1
"""Share of the cores that others may take beyond what is left to them before a profile is held to suffer."""

_HOUR, _HUGE = 3600.0, 1 << 24
"""Beyond these a profile is damaged."""


class Costs(Protocol):
    """Predicted times: a :class:`CostTable`, or one that is corrected while the run goes on."""

    @property
    def around_s(self) -> float:
        """Seconds that a step takes besides its pass and its drafts."""
        ...

    @property
    def asking_s(self) -> float:
        """Seconds of a step that drafts take which need no pass: to look them up and to weigh them."""
        ...

    def verify_s(self, tokens: int, context: float, rows: int | None = None) -> float:
        """Seconds of a target pass."""
        ...

    def verify_curve(self, most: int, context: float, rows: int) -> Floats:
        """Seconds of target passes over 0 … ``most`` tokens."""
        ...

    def draft_s(self, rows: int, width: int) -> float:
        """Seconds of one more draft level."""
        ...

    def draft_tree_s(self, rows: int, width: int, levels: float) -> float:
        """Seconds of drafting whole trees."""
        ...

    def prefill_s(self, tokens: int) -> float:
        """Seconds of a target pass over prompt tokens."""
        ...

    def beside_s(self, prefill: NDArray[np.int64]) -> Floats:
        """Seconds that so many prompt tokens add to passes that verify something."""
        ...

    def step_s(self, tokens: int, context: float, rows: int, prefill: int) -> float:
        """Seconds of a target pass that verifies and prefills."""
        ...


@dataclass(frozen=True)
class CostTable:
    """A profile.

    A pass over N tokens of R rows is taken to cost what N tokens of one row's tree cost, and the rest
    of what R rows of one token each cost beyond R tokens of one row: their keys are read once for
    every row. That is exact in both extremes, and never falls in N, R or context.

    Attributes:
        fingerprint: Of what it holds for.
        verify: Measured passes, with ``rows`` 1 (a tree) or ``rows = tokens`` (plain decoding).
        draft: Measured drafts; none without a drafter.
        prefill: Measured chunks.
        checks: Passes of several rows with trees, which the table was not made from.
        bytes_per_token: Memory of a committed token: keys and values of target and drafter.
        bytes_per_node: Memory of a drafted token while it is verified: the same, and its logits.
        effort: ``short`` for the automatic profile of a first run, ``full`` for the command.
        seconds: How long measuring took.
        measured_at: When, ISO 8601.
        others_share: What other processes took of the cores meanwhile; ``None`` where nobody counts.
    """

    fingerprint: Fingerprint
    verify: tuple[VerifyPoint, ...]
    draft: tuple[DraftPoint, ...]
    prefill: tuple[PrefillPoint, ...]
    checks: tuple[VerifyPoint, ...]
    bytes_per_token: int
    bytes_per_node: int
    effort: Literal["short", "full"]
    seconds: float
    measured_at: str
    others_share: float | None = None

    def __post_init__(self) -> None:
        points: tuple[VerifyPoint | DraftPoint | PrefillPoint, ...] = (*self.verify, *self.checks)
        if not all(0.0 < point.seconds < _HOUR for point in (*points, *self.draft, *self.prefill)):
            raise ValueError("a measured time is not between nothing and an hour")
        if not all(
            0 < size < _HUGE for point in (*points, *self.draft, *self.prefill) for size in sizes(point)
        ):
            raise ValueError("a measured size is not a number of tokens or rows")
        if len({point.tokens for point in self.verify if point.rows == 1}) < 2:
            raise ValueError("a profile has target passes over at least two numbers of tokens")
        if not self.prefill:
            raise ValueError("a profile has at least one prefill chunk")
        if datetime.fromisoformat(self.measured_at).tzinfo is None:
            raise ValueError("the time it was measured at is nobody's: it has no time zone")

    @property
    def around_s(self) -> float:
        """Nothing: that is for a run to tell."""
        return 0.0

    @property
    def asking_s(self) -> float:
        """Nothing, as well."""
        return 0.0

    def verify_s(self, tokens: int, context: float, rows: int | None = None) -> float:
        """Seconds of a target pass, the choice of the rows' next tokens included.

        Args:
            tokens: Tokens in the pass, roots included; 0 costs nothing.
            context: Committed tokens of a row, mean over the rows of the pass.
            rows: Rows they belong to; ``None``: each to a row of its own (plain decoding).
        """
        if not tokens:
            return 0.0
        rows = tokens if rows is None else min(tokens, rows)
        return self._trees.at(tokens, context) + self._extra.at(rows, context)

    def verify_curve(self, most: int, context: float, rows: int) -> Floats:
        """Seconds of target passes over 0, 1, … ``most`` tokens, float64 ``[most + 1]``.

        As :meth:`verify_s`, in one go for selection; a pass over less tokens than rows has a row
        for every token.
        """
        tokens = np.arange(1, most + 1, dtype=np.float64)
        trees = self._trees.along(tokens, context)
        extra = self._extra.along(np.minimum(tokens, rows), context)
        return np.concatenate((np.zeros(1), trees + extra))

    def draft_s(self, rows: int, width: int) -> float:
        """Seconds of one more draft level: a pass in which ``rows`` trees expand ``width`` nodes each.

        Raises:
            ValueError: No drafter was measured.
        """
        return self._level.at(rows, width) if rows else 0.0

    def draft_tree_s(self, rows: int, width: int, levels: float) -> float:
        """Seconds of drafting ``rows`` trees of ``levels`` levels, catching up included.

        Raises:
            ValueError: No drafter was measured.
        """
        if not (rows and levels):
            return 0.0
        return self._first_level.at(rows, width) + (levels - 1) * self._level.at(rows, width)

    def prefill_s(self, tokens: int) -> float:
        """Seconds of a target pass over ``tokens`` prompt tokens of one row alone."""
        return self._chunks.at(tokens, 1) if tokens else 0.0

    def beside_s(self, prefill: NDArray[np.int64]) -> Floats:
        """Seconds that so many prompt tokens add to passes that verify something: weights are read once.

        As :meth:`step_s` less :meth:`verify_s`, for many passes in one go; of the shape of ``prefill``.
        """
        alone = self._chunks.along(prefill.astype(np.float64), 1)
        beside: Floats = np.where(prefill > 0, np.maximum(0.0, alone - self.prefill_s(1)), 0.0)
        return beside

    def step_s(self, tokens: int, context: float, rows: int, prefill: int) -> float:
        """Seconds of a pass that carries prompt tokens beside those it verifies: weights are read once."""
        if not tokens:
            return self.prefill_s(prefill)
        beside = max(0.0, self.prefill_s(prefill) - self.prefill_s(1)) if prefill else 0.0
        return self.verify_s(tokens, context, rows) + beside

    @property
    def disturbed(self) -> str:
        """What speaks against measured times: others were at work; empty if nothing does."""
        spare = max(0.0, 1.0 - self.fingerprint.threads / self.fingerprint.cores)
        if self.others_share is None or self.others_share <= spare + DISTURBED:
            return ""
        return f"other programs had {self.others_share:.0%} of the machine while it was measured"

    @property
    def check_error(self) -> PredictionError | None:
        """How far the table is from the passes it was not made from; ``None`` without any."""
        return PredictionError.of(
            (self.verify_s(point.tokens, point.context, point.rows), point.seconds) for point in self.checks
        )

    def to_json(self) -> bytes:
        """The file."""
        return _ADAPTER.dump_json(self, indent=1) + b"\n"

    @staticmethod
    def from_json(content: bytes) -> CostTable:
        """Read a file.

        Raises:
            ValueError: It is not a profile; says why.
        """
        try:
            return _ADAPTER.validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None

    @cached_property
    def _trees(self) -> Surface:
        """Tokens of one row, by tokens and context."""
        return Surface.through(self._layout(trees=True))

    @cached_property
    def _extra(self) -> Surface:
        """What rows cost beyond the tokens of one row, by rows and context; nothing for one row."""
        trees = self._layout(trees=True)
        surplus = {
            place: max(0.0, seconds - trees[place])
            for place, seconds in self._layout(trees=False).items()
            if place in trees
        }
        contexts = {context for _, context in surplus} or {1}
        return Surface.through({**surplus, **{(1, context): 0.0 for context in contexts}})

    def _layout(self, *, trees: bool) -> dict[tuple[int, int], float]:
        """(tokens, context) → seconds; a pass over one token is of either layout."""
        return {
            (point.tokens, point.context): point.seconds
            for point in self.verify
            if point.tokens == 1 or (point.rows == 1) == trees
        }

    @cached_property
    def _first_level(self) -> Surface:
        """Drafts up to the first level, by rows and width."""
        shortest = {place: levels[0] for place, levels in self._drafts().items()}
        return Surface.through(
            {place: max(t - (n - 1) * self._rise(place), 0.0) for place, (n, t) in shortest.items()}
        )

    @cached_property
    def _level(self) -> Surface:
        """One more level, by rows and width."""
        return Surface.through({place: self._rise(place) for place in self._drafts()})

    def _rise(self, place: tuple[int, int]) -> float:
        """Seconds per level at a number of rows and a width: never negative."""
        (few, short), (many, long) = self._drafts()[place][0], self._drafts()[place][-1]
        return max(0.0, (long - short) / (many - few)) if many > few else short / few

    def _drafts(self) -> Mapping[tuple[int, int], list[tuple[int, float]]]:
        """(rows, width) → levels and seconds, rising in levels.

        Raises:
            ValueError: No drafter was measured.
        """
        if not self.draft:
            raise ValueError("the profile was measured without a drafter")
        found: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for point in sorted(self.draft, key=lambda point: point.levels):
            found.setdefault((point.rows, point.width), []).append((point.levels, point.seconds))
        return found

    @cached_property
    def _chunks(self) -> Surface:
        """Prompt tokens."""
        points = sorted(self.verify, key=lambda point: -point.context)
        single = {point.tokens: point.seconds for point in points if point.tokens == 1}
        measured = {**single, **{point.tokens: point.seconds for point in self.prefill}}
        return Surface.through({(tokens, 1): seconds for tokens, seconds in measured.items()})


_ADAPTER = TypeAdapter(CostTable)
