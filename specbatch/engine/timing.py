"""What steps took: added up, and told to the costs that the policies count with."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specbatch.hardware.corrected import CorrectedCosts
from specbatch.policy import decodes
from specbatch.work import Work


class Timed:
    """Adds the seconds spent inside to a number: ``with Timed(stats, "plan_s"):``.

    Args:
        owner: Whose number.
        field: Its name.
    """

    __slots__ = ("_field", "_owner", "_started")

    def __init__(self, owner: object, field: str) -> None:
        self._owner, self._field, self._started = owner, field, 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        seconds = time.perf_counter() - self._started
        setattr(self._owner, self._field, getattr(self._owner, self._field) + seconds)


def observe_pass(costs: CorrectedCosts | None, work: Sequence[Work], seconds: float) -> None:
    """Learn from a target pass and the choice of its tokens.

    Args:
        costs: What learns; ``None`` without a profile.
        work: The work of the pass, before it is committed.
        seconds: How long it took.
    """
    if costs is None:
        return
    writing = [item for item in work if decodes(item)]
    tokens = sum(1 + item.drafted for item in writing)
    context = sum(item.row.committed for item in writing) / max(1, len(writing))
    prefill = sum(item.count for item in work if not decodes(item))
    costs.observe_pass((tokens, context, len(writing), prefill), seconds)
