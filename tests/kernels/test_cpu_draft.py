"""Draft passes: equal to the twin in double precision, and an entry's bits depend on its keys alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import (  # noqa: E402
    AttentionKeys,
    DraftBatch,
    Placement,
    ThreadPool,
    draft_pass,
    draft_pass_reference,
)
from specbatch_kernels.cpu.packing import WeightType  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.draft_heads import (  # noqa: E402
    FEATURES,
    FORMS,
    HIDDEN,
    NAN,
    PAGE,
    PAGES,
    TARGET_VOCABULARY,
    VOCABULARY,
    WIDTH,
    Form,
    close,
    make_batch,
    make_cache,
    make_head,
    make_outputs,
    run,
    same,
)
from tests.kernels.isas import ISAS  # noqa: E402
from tests.kernels.matrices import ROUNDED_ELSEWHERE  # noqa: E402


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("which", FORMS)
@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_equals_the_twin_in_double_precision(
    isa: Isa, workers: int, which: Form, deeper: bool, heat: float
) -> None:
    head = make_head(*which)
    batch = make_batch([(0, 0, 7), (1, 0, 2), (3, 0, 1)], deeper=deeper)
    batch = replace(batch, wanted=torch.tensor([6, 8, 2, 9]))
    mine, exact = make_cache(), make_cache(torch.float64)
    expected = make_outputs(4, heat, torch.float64)
    draft_pass_reference(head, batch, exact, expected, None)
    with ThreadPool(workers, isa=isa) as pool:
        found = run(head, batch, mine, pool, heat)
    written = batch.placement.slots
    limit = 2e-5 if which[2] == "float32" else ROUNDED_ELSEWHERE
    assert close(found.logits, expected.logits, limit)
    assert close(found.states, expected.states, limit)
    assert close(mine.k[written], exact.k[written], limit)
    assert close(mine.v[written], exact.v[written], limit)
    if which[2] == "float32":
        assert torch.equal(found.ids, expected.ids)
        assert close(found.log_probs, expected.log_probs)
        assert close(found.scores, expected.scores)
    mine.k[written] = NAN  # and nothing else was
    assert bool(mine.k.isnan().all())


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    which=st.sampled_from(FORMS),
    heat=st.sampled_from([0.0, 1.3]),
    workers=st.sampled_from([1, 2]),
)
@settings(max_examples=30, deadline=None)
def test_bits_do_not_depend_on_the_other_entries_or_the_threads(
    counts: list[int], which: tuple[WeightType, str], heat: float, workers: int
) -> None:
    head = make_head(*which)
    batch = make_batch([(row, 0, count) for row, count in enumerate(counts)])
    with ThreadPool(workers) as pool, ThreadPool(1) as lone:
        together = run(head, batch, make_cache(), pool, heat)
        start = 0
        for row, count in enumerate(counts):
            cache = make_cache()
            for position in range(count):
                alone = make_batch([(row, position, 1)])
                outputs = replace(make_outputs(1, heat), noise=together.noise[start : start + 1])
                draft_pass(head, alone, cache, outputs, lone)
                assert same(together, outputs, slice(start, start + 1))
                start += 1


def test_a_tree_entry_equals_the_plain_entry_with_the_same_keys() -> None:
    head = make_head("q8_0", "eagle3.1")
    with ThreadPool(1) as pool:
        plain = run(head, make_batch([(0, 0, 8)], deeper=True), make_cache(), pool, 0.0)
        cache = make_cache()
        states = make_batch([(0, 0, 8)], deeper=True)
        assert states.states is not None
        first = make_batch([(0, 0, 6)], deeper=True)
        first = replace(first, states=states.states, state_index=torch.arange(7, 1, -1))
        run(head, first, cache, pool, 0.0)
        # Positions 6 and 7 lie in scratch: at row positions 30 and 33, with a stranger between them.
        tree = DraftBatch(
            tokens=states.tokens[[6, 0, 7]],
            placement=Placement(torch.tensor([6, 6, 7]), torch.tensor([30, 31, 33])),
            keys=AttentionKeys(
                first.keys.page_table,
                torch.zeros(3, dtype=torch.int32),
                torch.full((3,), 6, dtype=torch.int32),
                torch.tensor([0, 1, 2, 4], dtype=torch.int32),
                torch.tensor([30, 31, 30, 33], dtype=torch.int32),
            ),
            wanted=torch.tensor([0, 2]),
            states=states.states,
            state_index=torch.tensor([1, 5, 0]),
        )
        deeper = run(head, tree, cache, pool, 0.0)
    assert same(plain, deeper, slice(6, 8))


def test_a_row_without_finite_logits_has_no_candidates_and_harms_no_other() -> None:
    head = make_head("f32", "eagle3")
    batch = make_batch([(0, 0, 2), (1, 0, 2)])
    with ThreadPool(2) as pool:
        healthy = run(head, batch, make_cache(), pool, 0.0)
        for poison in (NAN, math.inf):
            assert batch.features is not None
            features = batch.features.clone()
            features[1, 0, 3] = poison
            found = run(head, replace(batch, features=features), make_cache(), pool, 0.0)
            assert found.ids[1].tolist() == [-1] * WIDTH
            assert torch.equal(found.ids[[0, 2, 3]], healthy.ids[[0, 2, 3]])
            assert torch.equal(found.log_probs[[0, 2, 3]], healthy.log_probs[[0, 2, 3]])


def test_more_candidates_than_tokens_end_in_minus_one() -> None:
    head = make_head("f32", "eagle3")
    batch = make_batch([(0, 0, 1)])
    wide = replace(
        make_outputs(1, 0.7),
        ids=torch.full((1, VOCABULARY + 3), -7),
        log_probs=torch.full((1, VOCABULARY + 3), NAN, dtype=torch.float64),
        scores=torch.full((1, VOCABULARY + 3), NAN, dtype=torch.float64),
    )
    with ThreadPool(1) as pool:
        draft_pass(head, batch, make_cache(), wide, pool)
    assert sorted(wide.ids[0, :VOCABULARY].tolist()) == head.parts.target_ids.tolist()
    assert wide.ids[0, VOCABULARY:].tolist() == [-1] * 3
    assert float(wide.log_probs[0, :VOCABULARY].exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert bool((wide.scores[0, : VOCABULARY - 1] >= wide.scores[0, 1:VOCABULARY]).all())


def test_a_temperature_near_zero_ranks_by_probability() -> None:
    head = make_head("q4_0", "joint")
    batch = make_batch([(0, 0, 3)])
    with ThreadPool(1) as pool:
        greedy = run(head, batch, make_cache(), pool, 0.0)
        cold = run(head, batch, make_cache(), pool, 1e-310)
    assert torch.equal(cold.ids, greedy.ids)
    assert cold.log_probs[:, 0].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.tensor([TARGET_VOCABULARY])}, "not in the vocabulary"),
        ({"placement": Placement(torch.tensor([64]), torch.tensor([0]))}, "past the rotary table"),
        ({"placement": Placement(torch.tensor([0]), torch.tensor([PAGE * PAGES]))}, "outside the cache"),
        ({"wanted": torch.tensor([1])}, "not in the pass"),
        ({"features": None, "states": torch.zeros(1, HIDDEN)}, "need features, or states"),
        (
            {"features": None, "states": torch.zeros(1, HIDDEN), "state_index": torch.tensor([1])},
            "no such state",
        ),
        ({"features": torch.zeros(1, FEATURES, HIDDEN + 1)}, "features"),
    ],
)
def test_indices_that_lead_outside_are_refused(change: dict[str, object], message: str) -> None:
    head = make_head("f32", "eagle3")
    batch = replace(make_batch([(0, 0, 1)]), **change)  # type: ignore[arg-type]
    with ThreadPool(1) as pool, pytest.raises(ValueError, match=message):
        run(head, batch, make_cache(), pool, 0.0)
