"""Chains of greedy rows without promises begin deep and end where they have become unlikely."""

from __future__ import annotations

import numpy as np
import pytest

from specbatch.draft.base import TreeShape
from specbatch.policy.base import bounded
from specbatch.policy.stopping import DEEP, LEAST_PATH, Stopping
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.slo import Slo
from specbatch.tree import TokenTree

NOTHING_PROMISED = Slo()


def row(
    left: int = 100, temperature: float = 0.0, slo: Slo = NOTHING_PROMISED, cap: int | None = None
) -> Row:
    params = SamplingParams(temperature=temperature, max_tokens=left + 1)
    prompt = Prompt(0, "0" * 32, None, "t", (1, 2), params, slo=slo, max_draft_tokens=cap)
    return Row(prompt, output=[5])


def chain(levels: int, least: float = LEAST_PATH) -> TreeShape:
    return TreeShape(levels, 1, levels, least=least)


def test_a_chain_that_ends_by_itself_begins_deep() -> None:
    stopping = Stopping(7)
    assert stopping.of(TreeShape(2, 1, 2), row()) == chain(DEEP)
    assert stopping.of(TreeShape(7, 1, 7), row()) == chain(7)
    assert Stopping(3).of(TreeShape(2, 1, 2), row()) == chain(3)


def test_no_chain_is_deeper_than_its_row_may_draft() -> None:
    stopping = Stopping(7)
    assert stopping.of(TreeShape(2, 1, 2), row(left=4)) == chain(3)
    assert stopping.of(TreeShape(2, 1, 2), row(cap=2)) == chain(2)
    assert stopping.of(TreeShape(2, 1, 2), row(cap=1)) == TreeShape(1, 1, 1)
    assert stopping.of(TreeShape(2, 1, 2), row(left=1)) is None


@pytest.mark.parametrize("shape", [TreeShape(2, 1, 2), TreeShape(3, 2, 6), TreeShape(4, 1, 4, free=True)])
def test_sampled_rows_promises_trees_and_free_drafts_keep_their_shape(shape: TreeShape) -> None:
    stopping = Stopping(7)
    for other in (row(temperature=0.5), row(slo=Slo(tpot_ms=10.0)), row(slo=Slo(deadline=9.0))):
        assert stopping.of(shape, other) == bounded(shape, other)
    if shape.width > 1 or shape.free:
        assert stopping.of(shape, row()) == bounded(shape, row())


def test_what_is_free_keeps_its_depth_and_took_no_pass() -> None:
    stopping, asked = Stopping(7), TreeShape(2, 1, 2, free_levels=7)
    found = stopping.of(asked, row())
    assert found == TreeShape(4, 1, 4, least=LEAST_PATH, free_levels=7)
    assert stopping.of(asked, row(cap=6)) == TreeShape(4, 1, 4, least=LEAST_PATH, free_levels=6)
    deep = TokenTree.chain(0, [1, 2, 3, 4, 5, 6, 7], [-0.1] * 7)
    for _ in range(200):
        stopping.learn([found], [deep])
    assert stopping.levels(found) == pytest.approx(4.0, abs=0.02)


def test_how_deep_chains_get_is_learnt_from_the_deepest_of_a_step() -> None:
    stopping = Stopping(7)
    tree = TokenTree.chain(0, [1, 2, 3], np.log([0.9, 0.9, 0.2]).tolist())
    assert stopping.levels(TreeShape(4, 1, 4)) == 4
    assert 1.0 < stopping.levels(chain(4)) < 4.0
    for _ in range(200):
        stopping.learn([chain(4), chain(4), TreeShape(4, 1, 4)], [tree, tree.first(1), tree.first(2)])
    assert stopping.levels(chain(4)) == pytest.approx(3.0, abs=0.02)
    assert stopping.levels(chain(7)) == Stopping(7).levels(chain(7)), "other chains are others"
    stopping.learn([chain(4)], [tree.first(0)])
    assert stopping.levels(chain(4)) == pytest.approx(3.0, abs=0.02), "no draft says nothing"
