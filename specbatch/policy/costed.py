"""What the policies have in common that count with measured costs and calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.energy.power_model import PowerModel
from specbatch.hardware.cost import Costs
from specbatch.policy.base import Decision, StepView
from specbatch.policy.calibration import Calibration
from specbatch.policy.candidates import Candidates, Selection
from specbatch.policy.forest import FEW, Drafts, Floats
from specbatch.policy.lengths import LengthModel
from specbatch.policy.need import LUCK_MARGIN, MARGIN, NONE, Need, need_of, promises
from specbatch.policy.selection import select
from specbatch.policy.stopping import Stopping
from specbatch.rows import Row
from specbatch.tree import TokenTree
from specbatch.work import Work

N_MAX = 16
"""Most nodes that a row gets on account of its promises."""

LEAST_GAIN = 0.01
"""Share by which verifying more must raise tokens per second."""

MIN_PROGRESS = 8
"""A row advances in at least one of so many steps."""

_SHORT = 8
"""Drafted tokens up to which their prices are looked up one by one."""

_ALONE = np.ones(1)


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a policy measures with.

    Attributes:
        calibration: Learns what the drafter's probabilities are worth.
        costs: Predicted times of passes and drafts; ``None`` without a profile.
        absence: Why there is no profile.
        has_free: The drafter proposes something even where no pass of a draft model may be spent.
        min_progress: For each row in how many steps it advances at least once, at least 1.
        power: What steps take in joules, where tokens per joule are gone for instead of tokens per second.
    """

    calibration: Calibration
    costs: Costs | None = None
    absence: str = ""
    has_free: bool = False
    min_progress: Callable[[Row], int] = lambda _: MIN_PROGRESS
    power: PowerModel | None = None


class CostedPolicy:
    """Select by promises and by expected tokens per second or joule; decode plainly without a profile.

    Args:
        largest: Bounds that no row's tree exceeds.
        instruments: Costs and calibration.
        n_max: Most nodes that a row gets on account of its promises.
    """

    name = "costed"
    keeps_promises = True

    def __init__(self, largest: TreeShape, instruments: Instruments, n_max: int = N_MAX) -> None:
        self.largest = largest
        self.lengths = LengthModel()
        self._calibration, self._n_max = instruments.calibration, n_max
        self._costs, self.notice = _usable(instruments)
        self._power = instruments.power
        self._stopping = Stopping(largest.levels)
        self._decisions: dict[Row, Decision] = {}
        self._needs: tuple[float, dict[Row, Need]] = (0.0, {})

    @property
    def decisions(self) -> Mapping[Row, Decision]:
        """Of the last selection."""
        return self._decisions

    def defer(self, work: Sequence[Work], now: float) -> list[Work]:
        """Everybody takes part."""
        return list(work)

    def shapes(self, view: StepView) -> list[TreeShape | None]:
        """Plain decoding without a profile; else what :meth:`wanted` asks for."""
        self._decisions = {}
        for row in view.rows:
            self.lengths.advance(row)
        if self._costs is None or not view.rows or not view.budget:
            return [None] * len(view.rows)
        return self.wanted(view, self._costs)

    def wanted(self, view: StepView, costs: Costs) -> list[TreeShape | None]:
        """Bounds of each row's tree in this step; of a policy that counts with costs."""
        return [None] * len(view.rows)

    def select(self, view: StepView, drafts: Drafts, shapes: Sequence[TreeShape]) -> list[TokenTree]:
        """What promises need, and what pays."""
        assert self._costs is not None, "nothing is drafted without a profile"
        if drafts.empty and not any(map(promises, view.rows)):
            self.learn_nothing(drafts.rows, shapes)
            return list(drafts.trees)
        conditional = self._calibration.conditional(drafts)
        self._stopping.learn(shapes, drafts.trees)
        self.learn(drafts, conditional, shapes)
        f = bounded_paths(drafts, conditional, shapes)
        here = {row: i for i, row in enumerate(drafts.rows)}
        starts = drafts.starts
        candidates = []
        for row, need in zip(view.rows, self.needs(view.rows, view.now), strict=True):
            i = here.get(row)
            own = _ALONE if i is None else f[starts[i] : starts[i + 1]]
            levels = 1 if i is None else max(shapes[i].levels, min(drafts.trees[i].size, shapes[i].deepest))
            candidates.append(Candidates(own, need, levels, self._n_max))
        step_s, other_s = prices(self._costs, view, self.draft_s(self._costs, shapes))
        pairs = zip(drafts.trees, shapes, strict=True)
        paid = sum(min(tree.size, shape.nodes) for tree, shape in pairs if not shape.free)
        price = joule_prices(self._power, len(view.rows), step_s, paid)
        selection = select(candidates, step_s, other_s, LEAST_GAIN, price)
        self._record(view, selection, drafts, shapes)
        place = {row: i for i, row in enumerate(view.rows)}
        return [selection.kept(tree, place[row]) for row, tree in zip(drafts.rows, drafts.trees, strict=True)]

    def learn(self, drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> None:
        """See what was drafted, with calibrated probabilities."""

    def learn_nothing(self, rows: Sequence[Row], shapes: Sequence[TreeShape]) -> None:
        """See that nothing was proposed to any of these rows."""

    def needs(self, rows: Sequence[Row], now: float) -> list[Need]:
        """What the rows' promises ask for; computed once for each row and moment."""
        if not self.keeps_promises:
            return [NONE] * len(rows)
        if self._needs[0] != now:
            self._needs = (now, {})
        known = self._needs[1]
        unknown = [row for row in rows if row not in known]
        alone_ms = self._alone_ms(unknown) if any(row.prompt.slo.tpot_ms for row in unknown) else 0.0
        for row in unknown:
            margin = LUCK_MARGIN if (row.prompt.slo.tpot_ms or math.inf) < alone_ms else MARGIN
            known[row] = need_of(row, now, self.lengths.remaining(row), margin)
        return [known[row] for row in rows]

    def _alone_ms(self, rows: Sequence[Row]) -> float:
        """Milliseconds of plain decoding per token of a row that is alone and like the usual one of these."""
        if self._costs is None:
            return 0.0
        context = sum(row.committed for row in rows) / len(rows)
        return 1e3 * (self._costs.around_s + self._costs.verify_s(1, context, 1))

    def draft_s(self, costs: Costs, shapes: Sequence[TreeShape]) -> float:
        """Seconds that drafting these trees takes together."""
        paid = [shape for shape in shapes if not shape.free]
        if not paid:
            return 0.0
        levels = max(self._stopping.levels(shape) for shape in paid)
        return costs.draft_tree_s(len(paid), max(shape.width for shape in paid), levels)

    def ended(self, row: Row) -> None:
        """A row has left the engine."""
        self.lengths.ended(row)
        self._decisions.pop(row, None)

    def _record(
        self, view: StepView, selection: Selection, drafts: Drafts, shapes: Sequence[TreeShape]
    ) -> None:
        drafted = {
            row: (tree.size, mode_of(shape))
            for row, tree, shape in zip(drafts.rows, drafts.trees, shapes, strict=True)
        }
        self._decisions = {}
        for i, row in enumerate(view.rows):
            size, mode = drafted.get(row, (0, "off"))
            slo, taken = int(selection.slo_nodes[i]), int(selection.taken[i])
            self._decisions[row] = Decision(
                mode=mode,
                needed=float(selection.needed[i]),
                budget=view.budget,
                drafted=size,
                slo_nodes=slo,
                extra_nodes=taken - slo,
                expected=float(selection.expected[i]),
                gain=selection.rate / selection.base_rate - 1.0,
                reason=_reason((slo, taken, size), bool(selection.hopeless[i]), bool(selection.unfunded[i])),
            )


def mode_of(shape: TreeShape | None) -> str:
    """How a row drafts: ``off``, ``free``, ``chain`` or ``tree``."""
    if shape is None:
        return "off"
    if shape.free:
        return "free"
    return "chain" if shape.width == 1 else "tree"


def bounded_paths(drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> Floats:
    """Probability of the path to every node, float64 ``[n]``; 0 for nodes beyond a tree's bounds."""
    few = len(conditional) <= FEW
    return (bounded_paths_plain if few else bounded_paths_arrays)(drafts, conditional, shapes)


def bounded_paths_arrays(drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> Floats:
    """As :func:`bounded_paths`, in whole-step operations."""
    forest = drafts.forest
    f = forest.paths(conditional)
    levels = np.array([shape.deepest for shape in shapes])
    f[forest.depths > levels[forest.owners]] = 0.0
    for i, shape in enumerate(shapes):
        if drafts.trees[i].size > shape.most:
            own = f[drafts.starts[i] + 1 : drafts.starts[i + 1]]
            own[np.argsort(-own, kind="stable")[shape.most :]] = 0.0
    return f


def bounded_paths_plain(drafts: Drafts, conditional: Floats, shapes: Sequence[TreeShape]) -> Floats:
    """Twin of :func:`bounded_paths_arrays` that goes from node to node: for few of them the quicker one."""
    given: list[float] = conditional.tolist()
    f: list[float] = []
    for tree, shape in zip(drafts.trees, shapes, strict=True):
        start, parents = len(f), tree.parents.tolist()
        own = [1.0]
        for node, parent in enumerate(parents[1:], start=1):
            own.append(own[parent] * given[start + node])
        depths = tree.depths.tolist()
        own = [each if depth <= shape.deepest else 0.0 for each, depth in zip(own, depths, strict=True)]
        if tree.size > shape.most:
            for node in sorted(range(1, len(own)), key=lambda node: -own[node])[shape.most :]:
                own[node] = 0.0
        f += own
    return np.array(f)


def prices(costs: Costs, view: StepView, draft_s: float) -> tuple[Floats, float]:
    """Seconds of the step with 0, 1, … drafted tokens, float64 ``[budget + 1]``, and of all else in it."""
    rows = len(view.rows)
    context = sum(row.committed for row in view.rows) / rows
    if view.budget <= _SHORT:
        tokens = range(rows, rows + view.budget + 1)
        curve = np.array([costs.verify_s(count, context, rows) for count in tokens])
    else:
        curve = costs.verify_curve(rows + view.budget, context, rows)[rows:]
    other_s = costs.around_s
    if view.prefill:
        other_s += max(0.0, costs.step_s(rows, context, rows, view.prefill) - float(curve[0]))
    return curve + draft_s, other_s


def joule_prices(power: PowerModel | None, rows: int, step_s: Floats, drafted: int) -> Floats | None:
    """Joules of the step with 0, 1, … drafted tokens, float64 ``[budget + 1]``; ``None``: count seconds.

    Args:
        power: What steps take; ``None`` where joules are not the objective.
        rows: Rows that write.
        step_s: Seconds of the same steps.
        drafted: Tokens that a draft model proposes for them.
    """
    if power is None or not power.is_known:
        return None
    return power.joules(step_s, rows + np.arange(len(step_s), dtype=np.float64), float(drafted))


def _reason(counts: tuple[int, int, int], hopeless: bool, unfunded: bool) -> str:
    """Why a row has nodes taken for promises, taken at all, and drafted."""
    slo, taken, drafted = counts
    if unfunded:
        return "over budget"
    if slo:
        return "promise"
    if taken:
        return "gain"
    if hopeless:
        return "hopeless"
    return "no gain" if drafted else "not drafted"


def _usable(instruments: Instruments) -> tuple[Costs | None, str]:
    """Costs of passes and drafts, or why there are none."""
    if instruments.costs is None:
        return None, f"plain decoding: {instruments.absence or 'no profile of this machine and models'}"
    try:
        instruments.costs.draft_tree_s(1, 1, 1)
    except ValueError as error:
        return None, f"plain decoding: {error}"
    return instruments.costs, ""
