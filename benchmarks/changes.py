"""Sudden changes of a run, and what is judged of them; see :mod:`benchmarks.regimes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specbatch.draft.base import Draft, Drafter, DraftRequest, Observed
from specbatch.rows import Answer, Prompt, Row
from specbatch.tree import TokenTree

if TYPE_CHECKING:  # imports torch
    from specbatch.bench.once import Run

GRACE_STEPS = 20
GRACE_SHARE = 0.1
TIERS = {"tight": {"priority": 0}, "medium": {"priority": 10}, "loose": {"priority": 20}}
USUAL = {"tight": 0.25, "medium": 0.25, "loose": 0.5}
CROWDED = {"tight": 0.6, "medium": 0.2, "loose": 0.2}
FACTORS = {"tight": "0.8x", "medium": "1.3x", "loose": None}


@dataclass(frozen=True, slots=True)
class Regime:
    """A change.

    Attributes:
        before: Share of each tier before it.
        after: And after it.
        rates: Rows per second before and after, as factors of what plain decoding answers; ``None``: all
            rows are there from the start.
        breaks_drafts: Drafted tokens are wrong from the change on.
        long_prompts: Prompts are longer from the change on.
    """

    before: dict[str, float]
    after: dict[str, float]
    rates: tuple[float, float] | None = None
    breaks_drafts: bool = False
    long_prompts: bool = False


REGIMES = {
    "drafts": Regime(USUAL, USUAL, breaks_drafts=True),
    "mix": Regime(USUAL, CROWDED),
    "rate": Regime(USUAL, USUAL, rates=(0.3, 0.9)),
    "memory": Regime(USUAL, USUAL, long_prompts=True),
}


class Breaking:
    """A drafter whose tokens are wrong from the first row on that is behind the change; it does not know.

    Args:
        inner: Drafts.
        first: Row index of the first row behind the change.
        vocab: Number of tokens.
    """

    def __init__(self, inner: Drafter, first: int, vocab: int) -> None:
        self.name, self.captured = inner.name, inner.captured
        self._inner, self._first, self._vocab, self._broken = inner, first, vocab, False

    def begin(self) -> None:
        """Passed on."""
        self._broken = False
        self._inner.begin()

    def observe(self, observed: Sequence[Observed]) -> None:
        """Passed on."""
        self._inner.observe(observed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """As probable as ever, and wrong: each token is another one than was meant."""
        self._broken = self._broken or any(each.row.prompt.row_index >= self._first for each in requests)
        drafts = self._inner.propose(requests)
        return [replace(draft, tree=self._spoilt(draft.tree)) for draft in drafts] if self._broken else drafts

    def forget(self, row: Row) -> None:
        """Passed on."""
        self._inner.forget(row)

    def _spoilt(self, tree: TokenTree) -> TokenTree:
        tokens = (tree.tokens + 1) % self._vocab
        tokens[0] = tree.tokens[0]
        return replace(tree, tokens=tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One changed run against one that began behind the change.

    Attributes:
        rows: Judged rows with promises.
        grace_s: Seconds after the change that do not count.
        changed: Share of them that kept their promises in the run that changed.
        fresh: And in the other one.
        preempted: Times that a row of the changed run lost its place or its pages.
    """

    rows: int
    grace_s: float
    changed: float
    fresh: float
    preempted: int


def judge(changed: Run, fresh: Run, prompts: Sequence[Prompt], first: int) -> Outcome:
    """Compare the rows that were admitted after the grace.

    Args:
        changed: Run of all rows.
        fresh: Run of those from ``first`` on, alone.
        prompts: Of ``changed``.
        first: Row index of the first row behind the change.
    """
    start = min(_admitted(answer) for answer in changed.answers[first:])
    later = [end for end in changed.step_ends if end > start]
    steps = later[min(GRACE_STEPS, len(later)) - 1] - start
    promised = [1e-3 * p.slo.tpot_ms * p.params.max_tokens for p in prompts[first:] if p.slo.tpot_ms]
    grace = max(steps, GRACE_SHARE * min(promised))
    rows = [
        prompt
        for prompt in prompts[first:]
        if prompt.slo.tpot_ms and _admitted(changed.answers[prompt.row_index]) >= start + grace
    ]
    kept = [
        sum(replace(run.answers[row.row_index - skip], slo=row.slo).slo_met is True for row in rows)
        for run, skip in ((changed, 0), (fresh, first))
    ]
    count = max(1, len(rows))
    return Outcome(len(rows), grace, kept[0] / count, kept[1] / count, changed.stats.preemptions)


def _admitted(answer: Answer) -> float:
    """When a row came into the engine; never, for one that was turned away."""
    return math.inf if answer.admitted_at is None else answer.admitted_at
