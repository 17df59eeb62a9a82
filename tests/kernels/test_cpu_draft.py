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
    DraftOutputs,
    HeadMatrices,
    HeadParts,
    KvCache,
    PackedHead,
    PackedMatrix,
    Placement,
    ThreadPool,
    draft_pass,
    draft_pass_reference,
    pack,
    pack_gated,
)
from specbatch_kernels.cpu.linear import WeightType, source_row_bytes  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

ISAS: list[Isa] = ["portable"] if ThreadPool(1).isa == "portable" else ["avx2", "portable"]
NAN = float("nan")
HIDDEN, INNER, HEADS, KV_HEADS, DIM, FEATURES = 64, 160, 6, 2, 16, 3
TARGET_VOCABULARY, VOCABULARY = 9000, 4500  # three chunks, the last one of an odd size
PAGE, PAGES, WIDTH = 4, 40, 5


def source(kind: WeightType, rows: int, cols: int) -> torch.Tensor:
    """Weights of about unit gain, as a file stores them."""
    if kind == "f32":
        return torch.randn(rows, cols) / math.sqrt(cols)
    raw: torch.Tensor = torch.randint(
        0, 256, (rows, cols // 32, source_row_bytes(kind, 32)), dtype=torch.uint8
    )
    scale = torch.rand(rows, cols // 32, 1) / math.sqrt(cols) * (0.03 if kind == "q8_0" else 0.4)
    raw[:, :, :2] = scale.half().view(torch.uint8)
    return raw.reshape(rows, -1)


def make_head(kind: WeightType, form: str) -> PackedHead:
    """``form``: ``eagle3``, ``eagle3.1``, or ``joint`` with the other published options."""
    torch.manual_seed(3)

    def matrix(rows: int, cols: int) -> PackedMatrix:
        return pack(source(kind, rows, cols), kind)

    def norm(*shape: int) -> torch.Tensor:
        return torch.rand(*shape) + 0.5

    matrices = HeadMatrices(
        embedding=matrix(TARGET_VOCABULARY, HIDDEN),
        fc=matrix(HIDDEN, FEATURES * HIDDEN),
        qkv=matrix((HEADS + 2 * KV_HEADS) * DIM, 2 * HIDDEN),
        output=matrix(HIDDEN, HEADS * DIM),
        gate_up=pack_gated(source(kind, INNER, HIDDEN), source(kind, INNER, HIDDEN), kind),
        down=matrix(HIDDEN, INNER),
        lm_head=matrix(VOCABULARY, HIDDEN),
    )
    angles = torch.arange(64.0).unsqueeze(1) / 100.0 ** (torch.arange(DIM // 2) / (DIM // 2))
    parts = HeadParts(
        feature_norms=norm(FEATURES, HIDDEN) if form == "eagle3.1" else None,
        joint_norm=norm(FEATURES * HIDDEN) if form == "joint" else None,
        embed_norm=norm(HIDDEN),
        hidden_norm=norm(HIDDEN),
        mlp_norm=norm(HIDDEN),
        final_norm=norm(HIDDEN),
        rotary=torch.stack([angles.cos(), angles.sin()], dim=1).contiguous(),
        target_ids=torch.randperm(TARGET_VOCABULARY)[:VOCABULARY].sort().values,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        eps=1e-5,
        norm_output=form == "eagle3.1",
        norm_residual=form == "joint",
    )
    return PackedHead(matrices, parts)


HEADS_MADE = {
    (kind, form): make_head(kind, form)  # type: ignore[arg-type]
    for kind, form in (("f32", "eagle3"), ("q8_0", "eagle3.1"), ("q4_0", "joint"))
}


def make_cache(dtype: torch.dtype = torch.float32) -> KvCache:
    shape = (PAGE * PAGES, KV_HEADS, DIM)
    return KvCache(torch.full(shape, NAN, dtype=dtype), torch.full(shape, NAN, dtype=dtype), PAGE)


def make_batch(rows: list[tuple[int, int, int]], *, deeper: bool = False) -> DraftBatch:
    """Plain entries: (row, first position, count) of each part; row r owns pages 10r onwards."""
    table = torch.arange(PAGES, dtype=torch.int32).reshape(4, 10)
    spots = [(row, position) for row, first, count in rows for position in range(first, first + count)]
    row, position = torch.tensor(spots).reshape(-1, 2).T
    slots = table[row, position // PAGE].long() * PAGE + position % PAGE
    none = torch.zeros(len(spots) + 1, dtype=torch.int32)
    index = 97 * row + position
    given = torch.sin(0.37 * index[:, None] + torch.arange(FEATURES * HIDDEN)).reshape(-1, FEATURES, HIDDEN)
    return DraftBatch(
        tokens=(7 * row + 3 * position + position**2) % TARGET_VOCABULARY,
        placement=Placement(position.contiguous(), slots),
        keys=AttentionKeys(table, row.int(), position.int() + 1, none, none[:0]),
        wanted=torch.arange(len(spots)),
        features=None if deeper else given.contiguous(),
        states=given[:, 0].flip(0).contiguous() if deeper else None,
        state_index=torch.arange(len(spots)).flip(0).contiguous() if deeper else None,
    )


def make_outputs(count: int, temperature: float, dtype: torch.dtype = torch.float32) -> DraftOutputs:
    """Poisoned outputs; every entry has noise of its own."""
    return DraftOutputs(
        temperature=torch.full((count,), temperature, dtype=torch.float64),
        noise=torch.arange(1, count + 1) * 0x1234567890ABCDE,
        states=torch.full((count, HIDDEN), NAN, dtype=dtype),
        ids=torch.full((count, WIDTH), -7),
        log_probs=torch.full((count, WIDTH), NAN, dtype=torch.float64),
        scores=torch.full((count, WIDTH), NAN, dtype=torch.float64),
        logits=torch.full((count, VOCABULARY), NAN, dtype=dtype),
    )


def run(head: PackedHead, batch: DraftBatch, cache: KvCache, pool: ThreadPool, heat: float) -> DraftOutputs:
    outputs = make_outputs(len(batch.wanted), heat)
    draft_pass(head, batch, cache, outputs, pool)
    return outputs


def close(found: torch.Tensor | None, wanted: torch.Tensor | None, limit: float = 2e-5) -> bool:
    assert found is not None
    assert wanted is not None
    return bool((found.double() - wanted).abs().max() <= limit * wanted.abs().max())


def same(a: DraftOutputs, b: DraftOutputs, of_a: slice = slice(None)) -> bool:
    """Bit equality of everything that was computed."""
    assert a.logits is not None
    assert b.logits is not None
    pairs = ((a.states, b.states), (a.ids, b.ids), (a.log_probs, b.log_probs), (a.scores, b.scores))
    return all(torch.equal(x[of_a], y) for x, y in (*pairs, (a.logits, b.logits)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("kind", "form"), list(HEADS_MADE))
@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_equals_the_twin_in_double_precision(
    isa: Isa, workers: int, kind: WeightType, form: str, deeper: bool, heat: float
) -> None:
    head = HEADS_MADE[kind, form]
    batch = make_batch([(0, 0, 7), (1, 0, 2), (3, 0, 1)], deeper=deeper)
    batch = replace(batch, wanted=torch.tensor([6, 8, 2, 9]))
    mine, exact = make_cache(), make_cache(torch.float64)
    expected = make_outputs(4, heat, torch.float64)
    draft_pass_reference(head, batch, exact, expected, None)
    with ThreadPool(workers, isa=isa) as pool:
        found = run(head, batch, mine, pool, heat)
    assert close(found.logits, expected.logits)
    assert close(found.states, expected.states)
    written = batch.placement.slots
    assert close(mine.k[written], exact.k[written])
    assert close(mine.v[written], exact.v[written])
    assert torch.equal(found.ids, expected.ids)
    assert close(found.log_probs, expected.log_probs)
    assert close(found.scores, expected.scores)
    mine.k[written] = NAN  # and nothing else was
    assert bool(mine.k.isnan().all())


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    which=st.sampled_from(list(HEADS_MADE)),
    heat=st.sampled_from([0.0, 1.3]),
    workers=st.sampled_from([1, 2]),
)
@settings(max_examples=30, deadline=None)
def test_bits_do_not_depend_on_the_other_entries_or_the_threads(
    counts: list[int], which: tuple[WeightType, str], heat: float, workers: int
) -> None:
    head = HEADS_MADE[which]
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
    head = HEADS_MADE["q8_0", "eagle3.1"]
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
    head = HEADS_MADE["f32", "eagle3"]
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
    head = HEADS_MADE["f32", "eagle3"]
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
    head = HEADS_MADE["q4_0", "joint"]
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
    head = HEADS_MADE["f32", "eagle3"]
    batch = replace(make_batch([(0, 0, 1)]), **change)  # type: ignore[arg-type]
    with ThreadPool(1) as pool, pytest.raises(ValueError, match=message):
        run(head, batch, make_cache(), pool, 0.0)
