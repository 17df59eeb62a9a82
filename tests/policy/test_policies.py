"""Policies: what they ask for, what they let through, and the bounds that hold for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.config import JobConfig, Tier, builtin_tiers
from specbatch.draft.base import TreeShape
from specbatch.errors import ConfigError
from specbatch.policy import Calibration, Drafts, Instruments, StepView, make_policy
from specbatch.policy.auto import AutoPolicy
from specbatch.policy.base import bounded, fit
from specbatch.policy.eagle import EaglePolicy
from specbatch.policy.fixed import FixedPolicy
from specbatch.policy.menu import menu
from specbatch.policy.off import OffPolicy
from specbatch.policy.probes import Probes
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree
from tests.policy.world import Machine
from tests.trees import trees


def row(max_tokens: int = 100, emitted: int = 1, cap: int | None = None) -> Row:
    params = SamplingParams(max_tokens=max_tokens)
    prompt = Prompt(0, "0" * 32, None, "standard", (1, 2), params, max_draft_tokens=cap)
    return Row(prompt, output=[7] * emitted)


def view(*rows: Row) -> StepView:
    return StepView(rows, now=0.0, budget=512)


def drafts(*some: TokenTree) -> Drafts:
    return Drafts(some, [row() for _ in some], np.zeros(sum(map(len, some)), dtype=np.int64))


@dataclass(frozen=True)
class Settings:
    policy: str
    gamma: int = 4
    tree_levels: int = 7
    tree_width: int = 10
    tree_nodes: int = 60
    tiers: Mapping[str, Tier] = field(default_factory=builtin_tiers)


def test_off_asks_for_nothing() -> None:
    policy = make_policy(Settings("off"))
    assert policy.shapes(view(row(), row())) == [None, None]
    assert policy.largest is None


@pytest.mark.parametrize(("name", "gamma"), [("fixed", 4), ("fixed:1", 1), ("fixed:8", 8)])
def test_fixed_asks_for_a_chain(name: str, gamma: int) -> None:
    policy = make_policy(Settings(name))
    assert policy.name == "fixed"
    assert policy.shapes(view(row())) == [TreeShape(gamma, 1, gamma)]


def test_eagle_asks_for_its_tree() -> None:
    policy = make_policy(Settings("eagle"))
    assert policy.name == "eagle"
    assert policy.shapes(view(row())) == [TreeShape(7, 10, 60)]
    assert make_policy(Settings("eagle", tree_levels=2, tree_width=3, tree_nodes=9)).shapes(view(row())) == [
        TreeShape(2, 3, 9)
    ]


@pytest.mark.parametrize(
    "name", ["fixed:0", "fixed:", "fixed:-1", "fixed:1.5", "fixed:²", "eagle:3", "turbo", ""]
)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        make_policy(Settings(name))


def test_the_settings_of_a_job_make_a_policy() -> None:
    assert isinstance(make_policy(JobConfig(input=("memory",))), AutoPolicy)
    assert isinstance(make_policy(JobConfig(input=("memory",), policy="off")), OffPolicy)


@pytest.mark.parametrize(
    ("max_tokens", "emitted", "levels"),
    [(100, 1, 4), (6, 1, 4), (5, 1, 3), (3, 1, 1), (2, 1, None), (9, 8, None)],
)
def test_no_row_drafts_beyond_its_last_token(max_tokens: int, emitted: int, levels: int | None) -> None:
    """Accepting every level emits one token more than there are levels."""
    wanted = None if levels is None else TreeShape(levels, 1, levels)
    assert FixedPolicy(4).shapes(view(row(max_tokens, emitted))) == [wanted]


@pytest.mark.parametrize(("cap", "gamma"), [(None, 4), (9, 4), (4, 4), (2, 2), (1, 1), (0, None)])
def test_a_rows_own_cap_holds(cap: int | None, gamma: int | None) -> None:
    wanted = None if gamma is None else TreeShape(gamma, 1, gamma)
    assert FixedPolicy(4).shapes(view(row(cap=cap), row())) == [wanted, TreeShape(4, 1, 4)]


@settings(max_examples=200, deadline=None)
@given(
    st.builds(TreeShape, st.integers(1, 8), st.integers(1, 10), st.integers(1, 60)),
    st.integers(1, 12),
    st.integers(0, 11),
    st.none() | st.integers(0, 12),
)
def test_shapes_stay_within_policy_row_and_cap(
    shape: TreeShape, max_tokens: int, emitted: int, cap: int | None
) -> None:
    (found,) = EaglePolicy(shape).shapes(view(row(max_tokens, min(emitted, max_tokens - 1), cap)))
    remaining = max_tokens - min(emitted, max_tokens - 1)
    if found is None:
        assert remaining == 1 or cap == 0
        return
    assert found.levels <= min(shape.levels, remaining - 1)
    assert found.nodes <= shape.nodes
    assert found.width <= shape.width
    assert cap is None or max(found.levels, found.nodes, found.width) <= cap
    assert found.nodes <= found.width * (1 + (found.levels - 1) * found.width), "more nodes than can exist"


@pytest.mark.parametrize(
    ("max_tokens", "cap", "wanted"),
    [
        (100, None, TreeShape(2, 1, 2, free_levels=7)),
        (6, None, TreeShape(2, 1, 2, free_levels=4)),
        (100, 5, TreeShape(2, 1, 2, free_levels=5)),
        (100, 1, TreeShape(1, 1, 1, free_levels=1)),
        (100, 0, None),
        (2, None, None),
    ],
)
def test_what_is_free_stays_within_row_and_cap_too(
    max_tokens: int, cap: int | None, wanted: TreeShape | None
) -> None:
    assert bounded(TreeShape(2, 1, 2, free_levels=7), row(max_tokens, 1, cap)) == wanted


@pytest.mark.parametrize(("free", "levels"), [(True, 7), (False, 0)])
def test_chains_go_deeper_where_that_is_free(free: bool, levels: int) -> None:
    table = Machine().table()
    policy = make_policy(Settings("auto"), Instruments(Calibration("suffix+head"), table, has_free=free))
    (asked,) = policy.shapes(view(row()))
    assert asked is not None
    assert (asked.width, asked.free_levels) == (1, levels)
    (probe,) = Probes(levels).among([None], view(row()), table, 0.0)
    assert probe == TreeShape(2, 1, 2, free_levels=levels)
    chains = [choice.shape for choice in menu(TreeShape(7, 4, 24), levels) if choice.mode == "chain"]
    assert {shape.free_levels for shape in chains if shape is not None} == {levels}


def test_of_a_chain_that_was_free_deeper_nodes_are_verified() -> None:
    deep = TokenTree.chain(0, [1, 2, 3, 4, 5], [-0.1] * 5)
    assert fit(deep, TreeShape(2, 1, 2, free_levels=4)) == deep.first(4)
    assert fit(deep, TreeShape(2, 1, 2)) == deep.first(2)


@settings(max_examples=100, deadline=None)
@given(trees(), st.builds(TreeShape, st.integers(1, 4), st.just(5), st.integers(1, 12)))
def test_selection_keeps_the_likeliest_nodes_that_are_not_too_deep(tree: TokenTree, shape: TreeShape) -> None:
    for policy in (EaglePolicy(shape), FixedPolicy(4)):
        (chosen,) = policy.select(view(row()), drafts(tree), [shape])
        chosen.check()
        assert chosen == fit(tree, shape)
    shallow = tree.keep(np.flatnonzero(tree.depths <= shape.levels))
    assert chosen == shallow.best(shape.nodes)
