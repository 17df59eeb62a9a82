"""When rows begin to write: the clock of a TPOT SLO starts with the first token.

While prompts beside it are computed, every step is long, or they are put off from step to step for the sake
of a row whose clock runs. Until they are done such a row's last prompt token is left out, so that it loses
nothing and they are computed in few large steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbatch.rows import Row
from specbatch.work import Work


def held_back(work: Sequence[Work], now: float) -> dict[int, int]:
    """Rows that begin later: item → tokens of its work that are not done, always the last one.

    Args:
        work: The plan.
        now: Seconds on the run clock.
    """
    starts = {i for i, item in enumerate(work) if item.yields_token and not item.row.output}
    held = {i: 1 for i in starts if now < _patience(work[i].row)}
    prompts = any(not item.yields_token or (i in starts and i not in held) for i, item in enumerate(work))
    return held if prompts else {}


def _patience(row: Row) -> float:
    """Up to when its first token may be held back, seconds on the run clock.

    That is for as long as all of its tokens were promised to take. A promised first token is not held back,
    and a deadline must leave time for twice as much as was promised.
    """
    slo, begun = row.prompt.slo, row.admitted_at
    if slo.tpot_ms is None or slo.ttft_ms is not None or begun is None:
        return 0.0
    own = 1e-3 * slo.tpot_ms * row.prompt.params.max_tokens
    return begun + own if slo.deadline is None else min(begun + own, slo.deadline - 2.0 * own)
