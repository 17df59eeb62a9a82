"""Measuring a profile with the executor and the drafter that a run uses."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from specbatch.draft.base import Drafter, DraftRequest, Observed, TreeShape
from specbatch.draft.guarded import GuardedDrafter
from specbatch.engine.build import DraftNeeds
from specbatch.engine.executor import Executor
from specbatch.engine.profile_grid import DRAFT_CONTEXT, LEVELS, Grid
from specbatch.engine.profile_rows import Ground, bushy_tree, stream_of
from specbatch.errors import EngineError
from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.hardware.measure import Probe, Timing, measure
from specbatch.hardware.neighbours import Neighbours
from specbatch.hardware.points import DraftPoint, PrefillPoint, VerifyPoint
from specbatch.models.config import ModelConfig
from specbatch.rows import Row
from specbatch.sampling import Draw
from specbatch.step import build_step
from specbatch.work import Work

Key = tuple[str, int, int, int]
"""Kind of a probe, and its three sizes."""

_VERIFY, _CHECK, _PREFILL, _DRAFT = "verify", "check", "prefill", "draft"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        fingerprint: Of all of it.
        config: Shape of the target.
        executor: The target. No row may be in flight: its pages are written to.
        drafter: What drafts, or ``None``.
        largest: The largest tree that the drafter was built for; ``None`` without a drafter.
        needs: What the drafter takes of the memory.
        prefill_chunk: Prompt tokens per step.
    """

    fingerprint: Fingerprint
    config: ModelConfig
    executor: Executor
    drafter: Drafter | None
    largest: TreeShape | None
    needs: DraftNeeds
    prefill_chunk: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks at the clock, and who is told how far it is.

    Attributes:
        progress: Called with how many measurements are done, and how many there are.
        clock: Seconds; any origin.
        others: Starts to watch what others take of the machine.
    """

    progress: Callable[[int, int], None] | None = None
    clock: Callable[[], float] = time.perf_counter
    others: Callable[[], Neighbours] = Neighbours


def measure_costs(subject: Subject, grid: Grid, watch: Watch = Watch()) -> CostTable:
    """Measure a profile.

    Args:
        subject: Machine and models, at rest.
        grid: What to measure.
        watch: Clock and progress.

    Raises:
        EngineError: Time or memory is too little for a profile, or the drafter fails.
    """
    start = watch.clock()
    ground = Ground(subject.executor.store, subject.config, grid.kv_bytes)
    drafter = None
    if subject.drafter is not None:
        drafter = GuardedDrafter(subject.drafter, subject.config.vocab_size)
    bench = _Bench(subject, ground)
    kinds = [bench.passes(grid), bench.chunks(grid), bench.checks(grid)]
    if drafter is not None and subject.largest is not None:
        kinds.insert(1, bench.drafts(grid, drafter, subject.largest))
    neighbours = watch.others()
    timings = measure(_in_turns(kinds), grid.effort, watch.progress, watch.clock)
    others_share = neighbours.share()
    bench.forget()
    if drafter is not None and drafter.faults:
        raise EngineError(
            f"no profile, the drafter failed: {drafter.notice}", "choose another --drafter, or --policy off"
        )
    return _table(subject, grid, timings, (watch.clock() - start, others_share))


def _table(
    subject: Subject, grid: Grid, timings: dict[Key, Timing], spent: tuple[float, float | None]
) -> CostTable:
    """The points of what was measured, in so many seconds beside others who had such a share of the machine.

    Raises:
        EngineError: It is too little.
    """
    found = {
        kind: [(key[1:], timing) for key, timing in timings.items() if key[0] == kind]
        for kind in (_VERIFY, _CHECK, _PREFILL, _DRAFT)
    }
    store, needs, config = subject.executor.store, subject.needs, subject.config
    per_token = store.bytes_per_token + needs.page_bytes // store.page_size
    outputs = 4 * (config.vocab_size + len(needs.captured) * config.hidden_size)
    try:
        return CostTable(
            fingerprint=subject.fingerprint,
            verify=tuple(VerifyPoint(*key, t.seconds, t.repeats) for key, t in found[_VERIFY]),
            draft=tuple(DraftPoint(*key, t.seconds, t.repeats) for key, t in found[_DRAFT]),
            prefill=tuple(PrefillPoint(key[0], t.seconds, t.repeats) for key, t in found[_PREFILL]),
            checks=tuple(VerifyPoint(*key, t.seconds, t.repeats) for key, t in found[_CHECK]),
            bytes_per_token=per_token,
            bytes_per_node=per_token + outputs,
            effort=grid.name,
            seconds=spent[0],
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            others_share=spent[1],
        )
    except ValueError as error:
        raise EngineError(
            f"no profile, too little could be measured in {grid.effort.seconds:g} s: {error}",
            "give more time with specbatch profile --seconds, or more memory with --kv-memory",
        ) from error


def _in_turns(kinds: Sequence[Sequence[Probe[Key]]]) -> list[Probe[Key]]:
    """One of each kind after another, so that none is starved."""
    turns = itertools.zip_longest(*kinds)
    return [probe for turn in turns for probe in turn if probe is not None]


class _Bench:
    """The probes of a subject.

    Args:
        subject: What is measured.
        ground: Where its rows lie.
    """

    def __init__(self, subject: Subject, ground: Ground) -> None:
        self._subject, self._ground = subject, ground
        self._drafting: list[Row] = []

    def passes(self, grid: Grid) -> list[Probe[Key]]:
        """Trees of one row, and one token each of many rows."""
        shapes = [
            (tokens, rows, context)
            for context in sorted(grid.contexts)
            for tokens in grid.tokens
            for rows in sorted({1, tokens})
        ]
        return list(self._verify(_VERIFY, shapes))

    def checks(self, grid: Grid) -> list[Probe[Key]]:
        """Passes of several rows with trees."""
        return list(self._verify(_CHECK, [(rows * each, rows, c) for rows, each, c in grid.checks]))

    def _verify(self, kind: str, shapes: Sequence[tuple[int, int, int]]) -> Iterator[Probe[Key]]:
        for tokens, rows, context in shapes:
            nodes = tokens // rows - 1
            placed = self._ground.rows(rows, context, nodes)
            if placed is None:
                continue
            trees = [bushy_tree(row, nodes, self._subject.config.vocab_size) for row in placed]
            work = [Work(row, 1, tree if nodes else None) for row, tree in zip(placed, trees, strict=True)]
            yield Probe((kind, tokens, rows, context), kind, tokens, self._pass(work))

    def chunks(self, grid: Grid) -> list[Probe[Key]]:
        """Prompts that a single pass computes."""
        probes = []
        for tokens in sorted({*grid.chunks, self._subject.prefill_chunk}):
            placed = self._ground.rows(1, tokens, 0)
            if placed is not None:
                row = placed[0]
                row.output.clear()
                row.cached = 0
                probes.append(
                    Probe((_PREFILL, tokens, 0, 0), _PREFILL, tokens, self._pass([Work(row, tokens)]))
                )
        return probes

    def _pass(self, work: Sequence[Work]) -> Callable[[], object]:
        """A target pass, and the choice of each row's next token, which waits for the device."""
        executor, size = self._subject.executor, self._ground.page_size
        firsts = np.cumsum([0, *(1 + item.drafted for item in work)])[:-1].tolist()
        draws = [Draw(item.row.prompt.params, stream_of(item.row), item.row.committed, ()) for item in work]
        return lambda: executor.choose(executor.forward(build_step(work, size)).logits, firsts, draws)

    def drafts(self, grid: Grid, drafter: Drafter, largest: TreeShape) -> list[Probe[Key]]:
        """Drafts of all sizes that the drafter was built for."""
        depths = sorted({min(levels, largest.levels) for levels in LEVELS})
        widths = sorted({min(width, largest.width) for width in grid.widths})
        shapes = [(rows, width, depth) for rows in grid.draft_rows for width in widths for depth in depths]
        context = min(DRAFT_CONTEXT, self._subject.config.max_context // 2)
        most = max(
            (rows for rows in grid.draft_rows if self._ground.rows(rows, context, 0) is not None), default=0
        )
        self._drafting = self._ground.rows(most, context, 0) or []
        self._show(drafter, context)
        probes = []
        for rows, width, depth in (shape for shape in shapes if shape[0] <= most):
            shape = TreeShape(depth, width, width * depth)
            requests = [DraftRequest(row, shape, stream_of(row)) for row in self._drafting[:rows]]
            size = rows * (1 + width * (depth - 1))
            probes.append(Probe((_DRAFT, rows, width, depth), _DRAFT, size, _proposal(drafter, requests)))
        return probes

    def _show(self, drafter: Drafter, context: int) -> None:
        """Let the drafter see the rows: features of the last token stand for those of a whole prompt."""
        shape = (1, len(drafter.captured), self._subject.config.hidden_size)
        features = np.zeros(shape, dtype=np.float32)
        seen = features if drafter.captured else None
        drafter.observe([Observed(row, context - 1, seen) for row in self._drafting])
        least = TreeShape(1, 1, 1)  # the first draft of a row takes in its prompt, later ones do not
        drafter.propose([DraftRequest(row, least, stream_of(row)) for row in self._drafting])

    def forget(self) -> None:
        """Take the rows away from the drafter."""
        drafter = self._subject.drafter
        if drafter is not None:
            for row in self._drafting:
                drafter.forget(row)


def _proposal(drafter: Drafter, requests: Sequence[DraftRequest]) -> Callable[[], object]:
    return lambda: drafter.propose(requests)
