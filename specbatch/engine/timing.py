"""What steps took, told to the costs that the policies count with."""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.hardware.corrected import CorrectedCosts
from specbatch.policy import decodes
from specbatch.step import Work


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
