"""Attribution: what of a step's seconds and joules is whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from specbatch.ledger import EngineStats
from specbatch.rows import Row
from specbatch.verify import Verdict
from specbatch.work import Work


class Metered(Protocol):
    """The part of a host that this needs."""

    def now(self) -> float:
        """Seconds on the run clock."""
        ...

    def joules(self) -> float | None:
        """Of the attempt so far; ``None`` without a meter."""
        ...


class StepSharing:
    """Shares the time from the beginning of a step to its verdicts among the rows of the step.

    Each row has as much of it as of the step's tokens, drafted ones included; of the time of drafting as
    much as of the tokens drafted. A drafter that looks at what was accepted does so after rows have
    ended: that goes to those still in flight. What is in between (waiting, ending rows, writing them
    down) is nobody's, and the remainder in ``summary.json``. Shares add up to ``stats.attributed_s``.

    Args:
        stats: Where the sum is kept.
        host: Clock and meter.
    """

    def __init__(self, stats: EngineStats, host: Metered) -> None:
        self._stats, self._host = stats, host
        self._time, self._joules = host.now(), host.joules()

    def skip(self) -> None:
        """What has passed since the last call is nobody's."""
        self._lap()

    def share(
        self,
        work: Sequence[Work],
        verdicts: Sequence[Verdict | None],
        pass_s: float,
        drafting: tuple[float, Mapping[Row, int]] | None = None,
    ) -> None:
        """What has passed since the last call belongs to a step, which is not committed yet.

        Args:
            work: Of the step.
            verdicts: One for each item.
            pass_s: Seconds of target pass and choice.
            drafting: Seconds of drafting, and the tokens drafted for each row.
        """
        seconds, joules = self._shared_lap()
        draft_s, drafted = drafting or (0.0, {})
        pass_s, draft_s = min(pass_s, seconds), min(draft_s, seconds)
        by_tokens = _portions([item.count + item.drafted for item in work])
        by_drafts = by_tokens
        if any(drafted.values()):
            by_drafts = _portions([drafted.get(item.row, 0) for item in work])
        for item, verdict, portion, of_draft in zip(work, verdicts, by_tokens, by_drafts, strict=True):
            own = (seconds - draft_s) * portion + draft_s * of_draft
            rejected = item.drafted - (0 if verdict is None else len(verdict.path))
            in_vain = pass_s * portion * rejected / (item.count + item.drafted)
            energy = None if joules is None else joules * (own / seconds if seconds else portion)
            item.row.share.add(own, energy, draft_s * of_draft, in_vain)

    def share_observing(self, work: Sequence[Work]) -> None:
        """What has passed since the last call went into the drafter's view of these items."""
        if not work:
            self.skip()
            return
        seconds, joules = self._shared_lap()
        for item, portion in zip(work, _portions([each.count for each in work]), strict=True):
            energy = None if joules is None else joules * portion
            item.row.share.add(seconds * portion, energy, seconds * portion)

    def _shared_lap(self) -> tuple[float, float | None]:
        """The same, for rows."""
        seconds, joules = self._lap()
        known = self._stats.attributed_j
        self._stats.attributed_s += seconds
        self._stats.attributed_j = None if joules is None or known is None else known + joules
        return seconds, joules

    def _lap(self) -> tuple[float, float | None]:
        """Seconds and joules since the last call."""
        time, joules = self._host.now(), self._host.joules()
        before, self._time = self._time, time
        spent = None if joules is None or self._joules is None else joules - self._joules
        self._joules = joules
        return time - before, spent


def _portions(amounts: Sequence[int]) -> list[float]:
    """What each is of all, not all of which are 0."""
    total = sum(amounts)
    return [amount / total for amount in amounts]
