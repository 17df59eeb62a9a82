"""Joules in the engine: a cap on power, joules as the objective, and what steps took for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from specbatch.config import JobConfig
from specbatch.energy.power_model import PowerModel
from specbatch.hardware.cost import Costs
from specbatch.policy import decodes
from specbatch.policy.journal import Journal
from specbatch.rows import Row
from specbatch.schedule.power import WINDOW_S, PowerGovernor
from specbatch.schedule.urgency import open_promises
from specbatch.work import Work

_NEARLY = 0.97
"""Share of the best tokens per joule at which more rows are as good."""

_READING_S = 0.25
"""Seconds between two readings that the model of power learns from."""

_NAP_S = 0.2


class Powered(Protocol):
    """The part of a host that this needs."""

    def now(self) -> float:
        """Seconds on the run clock."""
        ...

    def joules(self) -> float | None:
        """Of the attempt so far; ``None`` without a meter."""
        ...

    def sleep(self, seconds: float) -> None:
        """Nothing to do for this long, unless a stop is requested."""
        ...

    def stop_requested(self) -> bool:
        """Whether to leave after this step."""
        ...


@dataclass(slots=True)
class _Window:
    """What was done since a reading of clock and meter."""

    since: float
    joules: float | None
    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    paused_s: float = 0.0


class Economy:
    """What a step may do, by what steps have taken; does nothing for jobs that go for neither.

    Args:
        job: Objective, cap and limits.
        host: Clock and meter.
        journal: Where changes are written down.
        costs: Predicted times; ``None`` without a profile.
    """

    def __init__(self, job: JobConfig, host: Powered, journal: Journal, costs: Costs | None) -> None:
        self._job, self._host, self._journal, self._costs = job, host, journal, costs
        self.model = PowerModel() if job.objective == "tokens_per_joule" else None
        self._governor: PowerGovernor | None = None
        if job.power_cap is not None:
            most = job.max_rows_in_flight + job.draft_budget + job.prefill_chunk
            self._governor = PowerGovernor(job.power_cap, most)
        self._economic_rows = job.max_rows_in_flight
        self._window = _Window(host.now(), host.joules())

    @property
    def rows(self) -> int:
        """Rows that may be in flight."""
        most = min(self._job.max_rows_in_flight, self._economic_rows)
        return most if self._governor is None else self._governor.allowance.rows(most)

    def limited(self, work: Sequence[Work]) -> list[Work]:
        """The part of a step that the cap allows, the most urgent rows first; never nothing."""
        if self._governor is None:
            return list(work)
        allowance = self._governor.allowance
        writing = [item for item in work if decodes(item)]
        prompts = [item for item in work if not decodes(item)]
        left = allowance.prefill(sum(item.count for item in prompts), len(writing))
        kept = writing[: allowance.rows(len(writing))] if writing else []
        for item in prompts:
            count = min(item.count, left)
            if count:
                kept.append(item if count == item.count else replace(item, count=count))
                left -= count
        return kept

    def draft_budget(self, work: Sequence[Work]) -> int | None:
        """Drafted tokens that the cap leaves to a step; ``None`` without one."""
        if self._governor is None:
            return None
        return self._governor.allowance.drafted(sum(item.count for item in work))

    def restart(self) -> None:
        """There was nothing to do for a while: that says nothing about steps."""
        self._window = _Window(self._host.now(), self._host.joules())

    def observe(self, work: Sequence[Work], drafted: Mapping[Row, int], step_s: float) -> None:
        """See a step, pause after it where the cap asks for that, and judge what a window has taken.

        Args:
            work: What it did.
            drafted: Tokens that a draft model proposed, by row.
            step_s: Seconds that it took.
        """
        if self.model is None and self._governor is None:
            return
        window = self._window
        window.passes += 1
        tokens = sum(item.count + item.drafted for item in work)
        window.tokens += tokens
        window.drafted += sum(drafted.values())
        if self._governor is not None:
            self._pause(self._governor.allowance.pause_s(step_s, tokens))
        if self._host.now() - window.since >= (_READING_S if self._governor is None else WINDOW_S):
            self._judge(window, work)
            self.restart()

    def _pause(self, seconds: float) -> None:
        started = self._host.now()
        while (left := started + seconds - self._host.now()) > 0.0 and not self._host.stop_requested():
            self._host.sleep(min(left, _NAP_S))
        self._window.paused_s += self._host.now() - started

    def _judge(self, window: _Window, work: Sequence[Work]) -> None:
        now, joules = self._host.now(), self._host.joules()
        if joules is None or window.joules is None:
            return  # the meter has failed, which the summary tells; the allowance stays what it is
        seconds, spent = now - window.since, joules - window.joules
        if self.model is not None:
            self.model.observe((seconds, window.passes, window.tokens, window.drafted), spent)
            self._economic_rows = self._best_rows(self.model, work)
        if self._governor is not None:
            used = window.tokens / window.passes * (1.0 - window.paused_s / seconds)
            change = self._governor.observe(spent / seconds, used)
            if change is not None:
                self._journal.power(change, self._governor.allowance.tokens, spent / seconds)

    def _best_rows(self, model: PowerModel, work: Sequence[Work]) -> int:
        """Rows in flight with the most tokens per joule, more where that is nearly as good.

        Rows with promises are not kept waiting for the sake of energy.
        """
        most = self._job.max_rows_in_flight
        writing = [item.row for item in work if decodes(item)]
        if not model.is_known or self._costs is None or not writing or any(map(open_promises, writing)):
            return most
        context = sum(row.committed for row in writing) / len(writing)
        sizes = np.unique(np.geomspace(1, most, 24).round()).astype(np.int64)
        seconds = np.array([self._costs.verify_s(n, context, n) for n in sizes.tolist()])
        rates = sizes / model.joules(seconds, sizes.astype(np.float64), 0.0)
        return int(sizes[rates >= _NEARLY * rates.max()].max())
