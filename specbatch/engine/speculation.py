"""Speculate and select: what a step asks the target beyond the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from specbatch.draft.base import DraftRequest, Observed
from specbatch.draft.guarded import GuardedDrafter
from specbatch.ledger import Ledger
from specbatch.policy import SpeculationPolicy
from specbatch.randomness import Stream
from specbatch.rows import Row
from specbatch.step import Step, Work
from specbatch.tree import TokenTree
from specbatch.verify import Verdict


@dataclass(frozen=True, slots=True)
class Speculator:
    """A policy and the drafter it feeds on.

    Attributes:
        policy: How much each row drafts, and what of it is verified.
        drafter: Where candidates come from.
        budget: Drafted tokens that one target pass may carry, all rows together.
        ledger: Where drafts are counted.
    """

    policy: SpeculationPolicy
    drafter: GuardedDrafter
    budget: int
    ledger: Ledger

    def trees(self, work: Sequence[Work], stream_of: Callable[[Row], Stream]) -> list[TokenTree | None]:
        """What is to be verified with each item of a plan.

        Args:
            work: The plan.
            stream_of: A row's randomness.

        Returns:
            A tree or nothing for each item.
        """
        able = [i for i, item in enumerate(work) if _may_draft(item)]
        shapes = self.policy.shapes([work[i].row for i in able])
        drafting = [(i, shape) for i, shape in zip(able, shapes, strict=True) if shape is not None]
        trees: list[TokenTree | None] = [None] * len(work)
        if not drafting:
            return trees
        rows = [work[i].row for i, _ in drafting]
        requests = [DraftRequest(work[i].row, shape, stream_of(work[i].row)) for i, shape in drafting]
        drafts = self.drafter.propose(requests)
        for row, draft in zip(rows, drafts, strict=True):
            drafted = draft.tree.size + draft.discarded
            self.ledger.record_draft(row, drafted, draft.passes, draft.flops)
        chosen = self.policy.select([draft.tree for draft in drafts], [shape for _, shape in drafting])
        for (i, _), tree in zip(drafting, within_budget(chosen, self.budget), strict=True):
            trees[i] = tree if tree.size else None
        return trees


def _may_draft(item: Work) -> bool:
    """Whether this is plain decoding; a pass that ends a prefill has its own work to do."""
    return item.count == 1 and bool(item.row.output) and item.yields_token


def within_budget(trees: Sequence[TokenTree], budget: int) -> list[TokenTree]:
    """Of all drafted tokens together the likeliest ones, at most ``budget``; ties by order.

    A node is never likelier than its parent, so what is left of each tree hangs together.
    """
    sizes = [tree.size for tree in trees]
    if sum(sizes) <= budget:
        return list(trees)
    owner = np.repeat(np.arange(len(trees)), sizes)
    paths = np.concatenate([tree.path_log_probs[1:] for tree in trees])
    kept = np.argsort(-paths, kind="stable")[:budget]
    counts = np.bincount(owner[kept], minlength=len(trees)).tolist()
    return [tree.best(count) for tree, count in zip(trees, counts, strict=True)]


def observed(
    work: Sequence[Work], verdicts: Sequence[Verdict | None], step: Step, features: Tensor | None
) -> list[Observed]:
    """What the target stored for each row and the row keeps.

    Args:
        work: The work of a pass, committed since.
        verdicts: One for each item; rows whose text ended within an accepted path are not looked at.
        step: The pass.
        features: ``[captured layers, T, hidden]`` of it.
    """
    found = []
    for item, verdict, start in zip(work, verdicts, step.row_starts[:-1], strict=True):
        path = () if verdict is None else verdict.path
        first = item.row.cached - item.count - len(path)
        root = start + item.count - 1
        tokens = [*range(start, root + 1), *(root + node for node in path)]
        found.append(
            Observed(item.row, first, None if features is None else features[:, tokens].transpose(0, 1))
        )
    return found
