"""Where hardly anybody drafts, the head computes nothing; a row that begins late sees its latest tokens."""

from __future__ import annotations

import pytest
from specbatch_kernels.cpu import DraftBatch, DraftOutputs, KvCache

from specbatch.draft.base import TreeShape
from specbatch.draft.head_runner import HeadRunner
from specbatch.draft.interest import WINDOW
from specbatch.rows import Prompt, Row, SamplingParams
from tests.draft.head_world import (
    CHAIN,
    PAGE,
    World,
    as_paths,
    compiled,
    prompt,
    stream,
    true_features,
)
from tests.draft.heads_in_hand import CONFIG


class CountedRuns:
    """A runner that counts its passes."""

    def __init__(self, inner: HeadRunner) -> None:
        self.inner, self.runs = inner, 0
        self.config, self.positions, self.device = inner.config, inner.positions, inner.device

    def run(self, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
        self.runs += 1
        self.inner.run(batch, cache, outputs)


def test_a_row_that_drafts_late_sees_its_latest_tokens_alone() -> None:
    """Entries that nobody asks for are not made; rotary embeddings know distances, not places."""
    world = World(compiled(CONFIG))
    row = world.start(prompt(20))
    world.prefill(row)
    counted = CountedRuns(world.drafter._runner)
    world.drafter._runner = counted
    for token in range(2 * WINDOW):
        world.compute((row, 1, [token % 9]))
        kept = sum(len(piece) for piece in world.drafter._memory._known[row].pieces)
        assert kept <= 2 * WINDOW + PAGE
    assert counted.runs == 0
    origin = world.drafter._memory.origin(row)
    assert origin % PAGE == 0
    assert WINDOW <= row.committed - origin <= 2 * WINDOW + PAGE
    text, shape = world.text(row), TreeShape(3, 3, 8)
    features = true_features(text[:-1])
    (draft,) = world.propose((row, shape))
    expected = world.spelt_out.tree(
        text[origin:],
        features[origin:],
        shape,
        0.0,
        stream(row),
        features[origin - 1],
    )
    assert as_paths(draft.tree) == pytest.approx(expected, abs=2e-4)


def test_rows_on_shared_pages_without_entries_see_their_own_tokens() -> None:
    world = World(compiled(CONFIG))
    common = prompt(80)
    first = world.start([*common, 3])
    world.prefill(first, chunk=10)
    second = Row(Prompt(9, "9", None, "", (*common, 9, 11), SamplingParams(temperature=0.0)))
    second.pages.extend(world.pool.match([*common, 9, 11], len(common) + 1))
    second.cached = len(second.pages) * PAGE
    assert second.cached == len(common)
    world.prefill(second)
    assert world.drafter._memory.origin(second) == len(common)
    (draft,) = world.propose((second, CHAIN))
    assert draft.tree.size == CHAIN.levels
