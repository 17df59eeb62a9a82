"""The contract of every policy, and the bounds that hold whatever the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.policy.forest import Drafts
from specbatch.rows import Row
from specbatch.tree import TokenTree
from specbatch.work import Work


@dataclass(frozen=True, slots=True)
class StepView:
    """A step under construction, as a policy sees it.

    Attributes:
        rows: Rows that are due a token each and may draft.
        now: Seconds on the run clock.
        budget: Drafted tokens that the pass may carry; what fits into memory is in it.
        prefill: Other tokens in the pass, which bring these rows nothing.
    """

    rows: Sequence[Row]
    now: float
    budget: int
    prefill: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a row had verified what it had; no text and no tokens.

    Attributes:
        mode: How it drafted: ``off``, ``free`` (no pass of a draft model), ``chain`` or ``tree``.
        needed: A, tokens that its promises asked of the step; 1 without promises.
        budget: Drafted tokens that all rows of the pass could have together.
        drafted: Candidates to choose from.
        slo_nodes: Nodes taken because of the promises.
        extra_nodes: Nodes taken because they pay.
        expected: Tokens expected of the step.
        gain: Tokens per second of the step against plain decoding, as predicted, less one.
        reason: ``promise``, ``gain``, ``no gain``, ``hopeless``, ``over budget``, ``not drafted``.
    """

    mode: str
    needed: float
    budget: int
    drafted: int
    slo_nodes: int
    extra_nodes: int
    expected: float
    gain: float
    reason: str


class SpeculationPolicy(Protocol):
    """Decides who takes part in a step, how large the rows' trees may get, and what of them is verified."""

    @property
    def name(self) -> str:
        """What the settings call it."""
        ...

    @property
    def largest(self) -> TreeShape | None:
        """Bounds that no row's tree exceeds; ``None`` when nothing is drafted."""
        ...

    @property
    def notice(self) -> str:
        """Why it decodes plainly although it is meant to do more; empty when it does not."""
        ...

    @property
    def decisions(self) -> Mapping[Row, Decision]:
        """Of the last selection; empty for policies that treat all rows alike."""
        ...

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """The part of a plan that this step does; rows that are left out sit it out.

        Args:
            work: The plan.
            now: Seconds on the run clock.
        """
        ...

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """Bounds of each row's tree in this step; ``None`` for rows that draft nothing."""
        ...

    def select(self, view: StepView, drafts: Drafts, shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """The part of each draft that the target verifies.

        Args:
            view: As :meth:`shapes` saw it.
            drafts: What was proposed to the rows that were given a shape.
            shapes: The bounds of each draft.

        Returns:
            For each draft a subtree with the same root; the root alone where nothing is worth it.
        """
        ...

    def ended(self, row: Row) -> None:
        """A row has left the engine, finished or not; may be told of strangers."""
        ...


class EvenPolicy:
    """What policies have in common that treat all rows alike and learn nothing."""

    notice = ""

    @property
    def decisions(self) -> Mapping[Row, Decision]:
        """None."""
        return {}

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Everybody takes part."""
        return list(work)

    def select(self, view: StepView, drafts: Drafts, shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """The likeliest nodes within the bounds, whatever the others have."""
        return [fit(tree, shape) for tree, shape in zip(drafts.trees, shapes, strict=True)]

    def ended(self, row: Row) -> None:
        """Nothing is kept of rows."""


class Ranked(Protocol):
    """A tier with a priority."""

    @property
    def priority(self) -> int:
        """Lower is more urgent."""
        ...


class PolicySettings(Protocol):
    """The settings a policy is made from (fields of :class:`~specbatch.config.JobConfig`)."""

    @property
    def tiers(self) -> Mapping[str, Ranked]:
        """Latency classes by name."""
        ...

    @property
    def policy(self) -> str:
        """A policy's name; ``fixed`` may carry a number."""
        ...

    @property
    def gamma(self) -> int:
        """Tokens of a chain, for ``fixed`` without a number of its own."""
        ...

    @property
    def tree_levels(self) -> int:
        """Depth of a dynamic tree, at most."""
        ...

    @property
    def tree_width(self) -> int:
        """Nodes expanded per level of a dynamic tree, and candidates of each, at most."""
        ...

    @property
    def tree_nodes(self) -> int:
        """Nodes of a dynamic tree that are verified, at most."""
        ...


def decodes(item: Work) -> bool:
    """Whether this is plain decoding; a pass over more tokens has its own work to do."""
    return item.count == 1 and bool(item.row.output) and item.yields_token


def view_of(work: Sequence[Work], now: float, budget: int) -> StepView:
    """A plan as policies see it."""
    rows = [item.row for item in work if decodes(item)]
    prefill = sum(item.count for item in work if not decodes(item))
    return StepView(rows, now, budget, prefill)


def bounded(shape: TreeShape, row: Row) -> TreeShape | None:
    """The shape, cut down to what this row can use; ``None`` when that is nothing.

    A verification emits the accepted tokens and one more, so a row that may still emit r tokens has
    use for r - 1 levels. The row's own cap bounds levels and nodes alike.
    """
    useful = row.prompt.params.max_tokens - len(row.output) - 1
    nodes = shape.nodes
    cap = row.prompt.max_draft_tokens
    if cap is not None:
        useful, nodes = min(useful, cap), min(nodes, cap)
    levels = min(shape.levels, useful)
    if levels < 1 or nodes < 1:
        return None
    width = min(shape.width, nodes)
    nodes = min(nodes, width + (levels - 1) * width * width)
    return TreeShape(levels, width, nodes, shape.free, free_levels=min(shape.free_levels, useful))


def fit(tree: TokenTree, shape: TreeShape) -> TokenTree:
    """The likeliest part of a tree within the bounds on depth and number of nodes."""
    if tree.size > shape.deepest:  # a smaller tree cannot be too deep
        within = np.flatnonzero(tree.depths <= shape.deepest)
        tree = tree if len(within) == len(tree) else tree.keep(within)
    return tree.best(shape.most)
