"""What the engine calls back: clock, answers, progress, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specbatch.errors import EngineError, RowFault
from specbatch.job.outcome import StopRule
from specbatch.progress import Reporter, Snapshot, Tally
from specbatch.rows import Answer, Status
from specbatch.slo import Slo
from specbatch.table.decisions import DecisionWriter, Entry
from specbatch.table.index import NO_TIER, RowIndex
from specbatch.table.keys import key_hex
from specbatch.table.parts import PartWriter

MANY_DECISIONS = 50_000
"""Entries that force a commit although no row has finished."""

RECORD_EVERY_S = 5.0
"""Seconds between two records of the work done, as long as nothing is committed."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """Seconds since the first start of the run; goes on over attempts and never backwards.

    Attributes:
        base: Run time at which this attempt began.
        monotonic: Seconds that a clock change does not touch.
        started: ``monotonic()`` at that moment.
    """

    base: float
    monotonic: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds on the run clock."""
        return self.base + self.attempt_seconds()

    def attempt_seconds(self) -> float:
        """Seconds since this attempt began."""
        return self.monotonic() - self.started


@dataclass(frozen=True, slots=True)
class Rows:
    """What the host knows of the rows it did not see.

    Attributes:
        index: Of all rows.
        tiers: Tier names by the index's tier number.
        left: Rows without an answer, bool ``[N]``; updated as answers come.
    """

    index: RowIndex
    tiers: tuple[str, ...]
    left: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What an attempt has to show; fields as in :class:`specbatch.table.manifest.Attempt`."""

    rows: int
    answered_rows: int
    computed_tokens: int
    committed_tokens: int
    attributed_s: float
    attributed_j: float | None
    owner_tokens: dict[str, int]


class RunHost:
    """Implements :class:`specbatch.engine.feed.Host`.

    Args:
        clock: Of the run.
        rows: Of the job.
        writer: Receives the answers.
        tally: Updated for the reporter.
        reporter: Told after every step.
        stop: Says when to stop.
    """

    def __init__(
        self,
        clock: RunClock,
        rows: Rows,
        writer: PartWriter,
        tally: Tally,
        reporter: Reporter,
        stop: StopRule,
    ) -> None:
        self._clock, self._rows, self._writer = clock, rows, writer
        self._tally, self._reporter, self._stop = tally, reporter, stop
        self._record: Callable[[WorkDone], None] | None = None
        self._recorded_at = clock.now()
        self._computed_tokens = self._committed_tokens = 0
        self._attributed: tuple[float, float | None] = (0.0, None)
        self._owner_tokens: Mapping[str, int] = {}
        self._decisions: DecisionWriter | None = None
        self._meter: Callable[[], float | None] = lambda: None

    def keep_meter(self, meter: Callable[[], float | None]) -> None:
        """Have the engine told of the joules of the attempt."""
        self._meter = meter

    def keep_record(self, record: Callable[[WorkDone], None]) -> None:
        """Have something told of the work done, after each commit and at least every ``RECORD_EVERY_S``."""
        self._record = record

    def keep_decisions(self, writer: DecisionWriter) -> None:
        """Have what is noted committed with the answers."""
        self._decisions = writer

    def now(self) -> float:
        """Seconds on the run clock."""
        return self._clock.now()

    def joules(self) -> float | None:
        """What the energy meter has counted since the engine began; ``None`` without a meter."""
        return self._meter()

    def sleep(self, seconds: float) -> None:
        """Nothing to do for this long, unless a stop is requested."""
        self._commit_if_due()
        if not self._stop.requested:
            time.sleep(seconds)

    def deliver(self, answer: Answer) -> None:
        """A row ended.

        Raises:
            EngineError: It had ended before.
            StorageError: The disk refused a due commit.
        """
        if not self._rows.left[answer.row_index]:
            raise EngineError(f"row {answer.row_index} was answered twice", "this is a defect of the engine")
        self._rows.left[answer.row_index] = False
        self._writer.add(answer)
        self._count(answer)
        self._commit_if_due()

    def refuse(self, row_index: int, status: Status, fault: RowFault) -> None:
        """A row ended before it had a prompt: faulty (``rejected``) or ``expired``."""
        index = self._rows.index
        deadline, asked = float(index.deadline[row_index]), int(index.asked[row_index])
        answer = Answer(
            row_index=row_index,
            key=key_hex(index.keys[row_index]),
            id=None,
            tier=None if asked == NO_TIER else self._rows.tiers[asked],
            status=status,
            error_code=fault.code,
            error_message=fault.message,
            slo=Slo(
                deadline=deadline if math.isfinite(deadline) else None,
                tpot_ms=_or_none(float(index.tpot_ms[row_index])),
                ttft_ms=_or_none(float(index.ttft_ms[row_index])),
            ),
            arrival=float(index.arrival[row_index]),
            finished_at=self.now(),
        )
        self.deliver(answer)

    def note(self, entry: Entry) -> None:
        """Something was decided."""
        if self._decisions is not None:
            self._decisions.add(entry)

    def tick(self, snapshot: Snapshot) -> None:
        """A step ended."""
        self._computed_tokens, self._owner_tokens = snapshot.output_tokens, snapshot.owner_tokens
        self._attributed = snapshot.attributed_s, snapshot.attributed_j
        self._commit_if_due()
        if self.now() - self._recorded_at >= RECORD_EVERY_S:
            self._keep()
        self._reporter.tick(snapshot)

    def stop_requested(self) -> bool:
        """Whether to leave after this step."""
        return self._stop.requested

    def commit(self) -> None:
        """Make everything delivered so far permanent.

        Raises:
            StorageError: The disk refused.
        """
        self._writer.flush()
        self._committed_tokens = self._tally.output_tokens
        if self._decisions is not None:
            self._decisions.flush()
        self._keep()

    def work_done(self) -> WorkDone:
        """What there is to show at present."""
        # The snapshot of the present step may still be to come.
        computed = max(self._computed_tokens, self._tally.output_tokens)
        committed, owners = self._committed_tokens, dict(self._owner_tokens)
        rows, answered = self._writer.committed, self._writer.answered
        return WorkDone(rows, answered, computed, committed, *self._attributed, owners)

    def _commit_if_due(self) -> None:
        if self._writer.due or (self._decisions is not None and len(self._decisions) >= MANY_DECISIONS):
            self.commit()

    def _keep(self) -> None:
        self._recorded_at = self.now()
        if self._record is not None:
            self._record(self.work_done())

    def _count(self, answer: Answer) -> None:
        self._stop.saw(answer.status)
        tally = self._tally
        tally.done += 1
        tally.failed += not answer.succeeded
        tally.output_tokens += answer.output_tokens
        tally.slo_met += answer.slo_met is True
        tally.slo_missed += answer.slo_met is False


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
