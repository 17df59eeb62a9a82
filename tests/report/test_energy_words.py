"""Energy in words: how it was measured is said once, and why it was not, of the run as a whole."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest

from specbatch.energy.meter import AssumedWatts
from specbatch.report.energy import COLUMNS, energy
from specbatch.report.runs.show import energy_in_words
from specbatch.report.speculation import Speculation
from specbatch.table.manifest import Attempt, AttemptEnergy

ROWS = pa.table({name: pa.array([], pa.bool_() if name == "slo_met" else pa.float64()) for name in COLUMNS})
DRAFTS = cast("Speculation", dict.fromkeys(("draft_flops", "rejected_flops", "rejected_flop_share"), 0.0))


def measured(joules: float) -> AttemptEnergy:
    return AttemptEnergy(method="assumed", scope=AssumedWatts(65.0).scope, joules=joules)


def unmeasured(reason: str) -> AttemptEnergy:
    return AttemptEnergy(method="none", reason=reason)


def attempt(found: AttemptEnergy | None, engine_seconds: float = 1.0) -> Attempt:
    return Attempt(start=0.0, engine_seconds=engine_seconds, energy=found)


def test_assumed_is_said_once() -> None:
    told = energy_in_words(energy(ROWS, [attempt(measured(130.0), 2.0)], DRAFTS))
    assert told.startswith("130 J (assumed: 65 W at all times, nothing was measured), 65.0 W mean")


@pytest.mark.parametrize(
    ("attempts", "reason"),
    [
        ([attempt(unmeasured("RAPL: none"))] * 2, "RAPL: none"),
        ([attempt(unmeasured("RAPL: none")), attempt(unmeasured("no driver"))], "RAPL: none; no driver"),
        ([attempt(None), attempt(measured(1.0))], "attempt 1 of 2: it ended before the meter was read"),
        ([attempt(None, 0.0), attempt(unmeasured("gone")), attempt(measured(1.0))], "attempt 2 of 3: gone"),
        ([attempt(None, 0.0)], "nothing was computed in this run"),
    ],
)
def test_why_there_is_no_number(attempts: list[Attempt], reason: str) -> None:
    found = energy(ROWS, attempts, DRAFTS)
    assert (found["joules"], found["reason"]) == (None, reason)
