"""Rows, a drafter and a machine made of formulas: what policies do over a run, in simulated time.

No model and no engine: whether a candidate is right is decided by chance, with a probability that each
row keeps to itself. Passes and drafts take as long as a formula says, and the policy knows a table of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbatch.config import JobConfig
from specbatch.draft.base import TreeShape
from specbatch.hardware.cost import CostTable
from specbatch.hardware.points import DraftPoint, PrefillPoint, VerifyPoint
from specbatch.policy import Calibration, Drafts, Instruments, SpeculationPolicy, make_policy, view_of
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.slo import Slo
from specbatch.tree import TokenTree
from specbatch.work import Work
from tests.hardware.costs import HERE

RIGHT, WRONG = 1, 2
NO_SLO = Slo()


@dataclass(frozen=True)
class Machine:
    """Seconds: weights are read once a pass, then each token costs; a draft costs per level and node."""

    pass_s: float = 0.010
    token_s: float = 0.0008
    prefill_s: float = 0.0005
    level_s: float = 0.0008
    node_s: float = 0.00008

    def verify(self, tokens: int, prefill: int = 0) -> float:
        return self.pass_s + self.token_s * tokens + self.prefill_s * prefill

    def draft(self, rows: int, width: int, levels: int) -> float:
        return levels * self.level_s + self.node_s * rows * (1 + width * (levels - 1))

    def table(self) -> CostTable:
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        verify = [VerifyPoint(n, rows, 64, self.verify(n), 3) for n in sizes for rows in {1, n}]
        draft = [
            DraftPoint(rows, width, levels, self.draft(rows, width, levels), 3)
            for rows in (1, 4, 16, 64)
            for width in (1, 4, 8)
            for levels in (1, 4)
        ]
        prefill = [PrefillPoint(n, self.pass_s + self.prefill_s * n, 3) for n in (16, 128)]
        return CostTable(
            HERE, tuple(verify), tuple(draft), tuple(prefill), (), 1, 1, "full", 1.0, "2026-11-29T00:00Z"
        )


@dataclass
class Guess:
    """How good drafts for a row are: chance that the likeliest child is right, and the next one."""

    top: float
    second: float = 0.1


@dataclass
class World:
    """One run of one policy.

    Attributes:
        guess: For a row at a time how good its drafts are.
        modes: Per step how the rows drafted: mode → rows.
        lengths: Seconds of each step.
    """

    policy: SpeculationPolicy
    calibration: Calibration
    machine: Machine
    guess: Callable[[Row, float], Guess]
    seed: int = 0
    chunk: int = 128
    now: float = 0.0
    running: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    finished: dict[int, tuple[Row, float]] = field(default_factory=dict)
    modes: list[dict[str, int]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    last: dict[Row, int] = field(default_factory=dict)  # step in which a row last took part
    longest_rest: int = 0

    @classmethod
    def of(
        cls,
        name: str,
        guess: Callable[[Row, float], Guess],
        machine: Machine = Machine(),
        known: bool = True,
        **settings: object,
    ) -> World:
        calibration = Calibration("head")
        job = JobConfig.model_validate({"input": ("memory",), "policy": name, **settings})
        tools = Instruments(calibration, machine.table() if known else None)
        return cls(make_policy(job, tools), calibration, machine, guess)

    def run(self, steps: int = 10**6) -> World:
        for _ in range(steps):
            if not (self.running or self.waiting):
                break
            self.step()
        return self

    def step(self) -> None:
        self.running += [row for row in self.waiting if row.prompt.arrival <= self.now]
        self.waiting = [row for row in self.waiting if row.prompt.arrival > self.now]
        if not self.running:
            self.now = min(row.prompt.arrival for row in self.waiting)
            return
        work = self.policy.defer(self.plan(), self.now)
        assert work, "somebody takes part"
        view = view_of(work, self.now, 512)
        shapes = self.policy.shapes(view)
        paid = [shape for shape in shapes if shape is not None]
        self.modes.append(self.count(shapes))
        trees: dict[Row, TokenTree] = {}
        started = self.now
        if paid:
            self.now += self.machine.draft(len(paid), max(s.width for s in paid), max(s.levels for s in paid))
            trees = self.select(view.rows, shapes, started)
        else:
            self.calibration.catch_up()
        drafted = sum(tree.size for tree in trees.values())
        self.now += self.machine.verify(len(view.rows) + drafted, view.prefill)
        self.lengths.append(self.now - started)
        for item in work:
            self.longest_rest = max(
                self.longest_rest, len(self.modes) - self.last.get(item.row, len(self.modes))
            )
            self.last[item.row] = len(self.modes)
            self.commit(item, trees.get(item.row))

    def plan(self) -> list[Work]:
        work, left = [], self.chunk
        for row in self.running:
            pending = row.committed - row.cached
            count = 1 if pending == 1 else min(pending, left)
            if count:
                work.append(Work(row, count))
                left -= count if pending > 1 else 0
        return work

    def select(
        self, rows: Sequence[Row], shapes: Sequence[TreeShape | None], now: float
    ) -> dict[Row, TokenTree]:
        drafting = [(row, shape) for row, shape in zip(rows, shapes, strict=True) if shape is not None]
        proposed = [self.draft(row, shape) for row, shape in drafting]
        drafts = Drafts(
            proposed, [row for row, _ in drafting], np.zeros(sum(map(len, proposed)), dtype=np.int64)
        )
        view = view_of([Work(row, 1) for row in rows], now, 512)
        chosen = self.policy.select(view, drafts, [shape for _, shape in drafting])
        for tree, whole, (_, shape) in zip(chosen, proposed, drafting, strict=True):
            tree.check()
            assert tree.size <= shape.nodes
            assert tree.size <= whole.size
        self.calibration.learn(drafts, [self.truth(row, 99) for row, _ in drafting])
        return {row: tree for (row, _), tree in zip(drafting, chosen, strict=True)}

    def truth(self, row: Row, most: int) -> list[int]:
        """Tokens that the target will choose next: RIGHT is the likeliest child of the drafter."""
        rng = np.random.default_rng((self.seed, row.prompt.row_index, len(row.output)))
        guess = self.guess(row, self.now)
        found = []
        for draw in rng.random(min(most, 16)).tolist():
            found.append(RIGHT if draw < guess.top else WRONG if draw < guess.top + guess.second else 0)
            if not found[-1]:
                break
        return found

    def draft(self, row: Row, shape: TreeShape) -> TokenTree:
        """A tree of likeliest and second children that always claims the same probabilities."""
        tokens, parents, logs, level = [row.token(row.committed - 1)], [-1], [0.0], [0]
        for _ in range(shape.levels):
            deeper = []
            for node in level[: shape.width]:
                for token, said in ((RIGHT, 0.7), (WRONG, 0.15))[: shape.width]:
                    tokens.append(token)
                    parents.append(node)
                    logs.append(float(np.log(said)))
                    deeper.append(len(tokens) - 1)
            level = sorted(deeper, key=lambda node: -self.path(parents, logs, node))
        return TokenTree(np.array(tokens), np.array(parents, dtype=np.int32), np.array(logs))

    @staticmethod
    def path(parents: Sequence[int], logs: Sequence[float], node: int) -> float:
        total = 0.0
        while node > 0:
            total += logs[node]
            node = parents[node]
        return total

    def commit(self, item: Work, tree: TokenTree | None) -> None:
        row = item.row
        if not item.yields_token:
            row.cached += item.count
            return
        emitted, node = 0, 0
        for token in self.truth(row, 99):
            child = None if tree is None else tree.child(node, token)
            if child is None:
                break
            emitted, node = emitted + 1, child
        gained = min(emitted + 1, row.prompt.params.max_tokens - len(row.output))
        row.output += [3] * gained
        row.cached = row.committed - 1
        if row.first_token_at is None:
            row.first_token_at = self.now
        if len(row.output) >= row.prompt.params.max_tokens:
            self.finished[row.prompt.row_index] = (row, self.now)
            self.running.remove(row)
            self.policy.ended(row)
            self.calibration.forget(row)

    def count(self, shapes: Sequence[TreeShape | None]) -> dict[str, int]:
        found: dict[str, int] = {}
        for shape in shapes:
            name = "off" if shape is None else "chain" if shape.width == 1 else "tree"
            found[name] = found.get(name, 0) + 1
        return found

    @property
    def tokens_per_s(self) -> float:
        return sum(len(row.output) for row, _ in self.finished.values()) / self.now

    def attainment(self, tier: str) -> float:
        """Share of a tier's rows that kept all they were promised."""
        met = [kept(row, at) for row, at in self.finished.values() if row.prompt.tier == tier]
        return sum(met) / len(met)


def kept(row: Row, finished_at: float) -> bool:
    slo, first = row.prompt.slo, row.first_token_at
    assert first is not None
    checks = [slo.deadline is None or finished_at <= slo.deadline]
    if slo.tpot_ms is not None and len(row.output) > 1:
        checks.append(1e3 * (finished_at - first) / (len(row.output) - 1) <= slo.tpot_ms)
    if slo.ttft_ms is not None:
        checks.append(1e3 * (first - row.prompt.arrival) <= slo.ttft_ms)
    return all(checks)


def row(
    index: int,
    tier: str = "standard",
    slo: Slo = NO_SLO,
    tokens: int = 100,
    prompt: int = 40,
    arrival: float = 0.0,
) -> Row:
    params = SamplingParams(max_tokens=tokens)
    return Row(Prompt(index, f"{index:032x}", None, tier, (1,) * prompt, params, slo, arrival))
