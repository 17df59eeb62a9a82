"""A chain drafted in one call equals its passes made one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import (  # noqa: E402
    NOT_DRAFTED,
    ChainLevels,
    DraftBatch,
    DraftOutputs,
    Placement,
    ThreadPool,
    draft_pass,
    draft_pass_reference,
)

from tests.kernels.draft_heads import (  # noqa: E402
    FORMS,
    NAN,
    PAGE,
    Form,
    close,
    make_batch,
    make_cache,
    make_head,
    make_outputs,
    same,
)

SCRATCH = 28
"""Row position behind the text from which the nodes of a chain are stored, one every other place."""


def make_chain(lengths: list[int], depths: list[int], least: float = -torch.inf) -> DraftBatch:
    """Rows with so many entries of text; each then drafts so deep, no row deeper than the one before."""
    batch = make_batch([(row, 0, length) for row, length in enumerate(lengths)])
    counts = tuple(sum(depth > level for depth in depths) for level in range(1, max(depths)))
    spots = [(row, level) for level, count in enumerate(counts) for row in range(count)]
    places = [SCRATCH + 2 * level for _, level in spots]
    pages = batch.keys.page_table
    slots = [int(pages[row, p // PAGE]) * PAGE + p % PAGE for (row, _), p in zip(spots, places, strict=True)]
    offsets: list[int] = []
    for level, count in enumerate(counts):
        offsets += [(level + 1) * row for row in range(count + 1)]
    extras = [SCRATCH + 2 * above for _, level in spots for above in range(level + 1)]
    chain = ChainLevels(
        counts=counts,
        placement=Placement(
            torch.tensor([lengths[row] + level for row, level in spots], dtype=torch.int64),
            torch.tensor(slots, dtype=torch.int64),
        ),
        token_row=torch.tensor([row for row, _ in spots], dtype=torch.int32),
        context_len=torch.tensor([lengths[row] for row, _ in spots], dtype=torch.int32),
        extra_offsets=torch.tensor(offsets, dtype=torch.int32),
        extra_positions=torch.tensor(extras, dtype=torch.int32),
        least=torch.full((len(lengths),), least, dtype=torch.float64),
    )
    return replace(batch, wanted=torch.tensor(lengths).cumsum(0) - 1, chain=chain)


def outputs_for(batch: DraftBatch, heat: float, dtype: torch.dtype = torch.float32) -> DraftOutputs:
    rows = batch.predictions
    return replace(
        make_outputs(rows, heat, dtype),
        ids=torch.full((rows, 1), -7),
        log_probs=torch.full((rows, 1), NAN, dtype=torch.float64),
        scores=torch.full((rows, 1), NAN, dtype=torch.float64),
        logits=None,
    )


def part(outputs: DraftOutputs, rows: slice) -> DraftOutputs:
    names = ("temperature", "noise", "states", "ids", "log_probs", "scores")
    return replace(outputs, **{name: getattr(outputs, name)[rows] for name in names})


@given(
    shapes=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=4),
    which=st.sampled_from(FORMS),
    heat=st.sampled_from([0.0, 1.1]),
    workers=st.sampled_from([1, 2]),
)
@settings(max_examples=25, deadline=None)
def test_equals_passes_one_by_one_to_the_bit(
    shapes: list[tuple[int, int]], which: Form, heat: float, workers: int
) -> None:
    shapes = sorted(shapes, key=lambda shape: -shape[1])
    head, batch = make_head(*which), make_chain([s[0] for s in shapes], [s[1] for s in shapes])
    chain = batch.chain
    assert chain is not None
    with ThreadPool(workers) as pool:
        together = outputs_for(batch, heat)
        draft_pass(head, batch, make_cache(), together, pool)
        cache, single = make_cache(), outputs_for(batch, heat)
        end = len(batch.wanted)
        before = part(single, slice(0, end))
        draft_pass(head, replace(batch, chain=None), cache, before, pool)
        done = extras = 0
        for level, count in enumerate(chain.counts):
            rows, offsets = slice(done, done + count), slice(done + level, done + level + count + 1)
            own = chain.extra_offsets[offsets].contiguous()
            positions = chain.extra_positions[extras : extras + int(own[-1])].contiguous()
            keys = replace(
                batch.keys,
                token_row=chain.token_row[rows],
                context_len=chain.context_len[rows],
                extra_offsets=own,
                extra_positions=positions,
            )
            here = part(single, slice(end, end + count))
            next_batch = DraftBatch(
                tokens=before.ids[:count, 0].contiguous(),
                placement=Placement(chain.placement.positions[rows], chain.placement.slots[rows]),
                keys=keys,
                wanted=torch.arange(count),
                states=before.states,
                state_index=torch.arange(count),
            )
            draft_pass(head, next_batch, cache, here, pool)
            before, done, end, extras = here, done + count, end + count, extras + len(positions)
    logits = torch.zeros(1)
    assert same(replace(together, logits=logits), replace(single, logits=logits))


@pytest.mark.parametrize("which", [form for form in FORMS if form[2] == "float32"])
@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_equals_the_twin_in_double_precision(which: Form, heat: float) -> None:
    head, batch = make_head(*which), make_chain([3, 1, 6], [4, 4, 2])
    found, expected = outputs_for(batch, heat), outputs_for(batch, heat, torch.float64)
    draft_pass_reference(head, batch, make_cache(torch.float64), expected, None)
    with ThreadPool(2) as pool:
        draft_pass(head, batch, make_cache(), found, pool)
    assert torch.equal(found.ids, expected.ids)
    assert close(found.states, expected.states)
    assert close(found.log_probs, expected.log_probs)
    assert close(found.scores, expected.scores)


def test_a_row_without_candidates_goes_on_without_harm() -> None:
    head, batch = make_head("f32", "eagle3"), make_chain([2, 2], [3, 3])
    assert batch.features is not None
    features = batch.features.clone()
    features[1] = NAN
    with ThreadPool(2) as pool:
        well, sick = outputs_for(batch, 0.0), outputs_for(batch, 0.0)
        draft_pass(head, batch, make_cache(), well, pool)
        draft_pass(head, replace(batch, features=features), make_cache(), sick, pool)
    assert sick.ids[::2, 0].tolist() == [-1, -1, -1]
    assert torch.equal(sick.ids[1::2], well.ids[1::2])
    assert torch.equal(sick.log_probs[1::2], well.log_probs[1::2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": (2, 3)}, "too many entries"),
        ({"counts": (5, 0)}, "too many entries"),
        ({"extra_offsets": torch.tensor([0, 1, 2, 3, 0, 2, 9], dtype=torch.int32)}, "exceed the extra"),
        ({"placement": Placement(torch.arange(60, 65), torch.arange(5))}, "past the rotary table"),
        ({"token_row": torch.tensor([0, 1, 9, 0, 1], dtype=torch.int32)}, "outside the page table"),
        ({"context_len": torch.zeros(4, dtype=torch.int32)}, "chain context_len"),
    ],
)
def test_levels_that_lead_outside_are_refused(change: dict[str, object], message: str) -> None:
    head, batch = make_head("f32", "eagle3"), make_chain([1, 1, 1], [3, 3, 2])
    assert batch.chain is not None
    batch = replace(batch, chain=replace(batch.chain, **change))  # type: ignore[arg-type]
    with ThreadPool(1) as pool, pytest.raises(ValueError, match=message):
        draft_pass(head, batch, make_cache(), outputs_for(batch, 0.0), pool)


def test_a_chain_has_one_candidate_per_entry_and_hands_out_no_logits() -> None:
    head, batch = make_head("f32", "eagle3"), make_chain([1], [2])
    wide = make_outputs(batch.predictions, 0.0)
    with ThreadPool(1) as pool:
        with pytest.raises(ValueError, match="one candidate per entry"):
            draft_pass(head, batch, make_cache(), replace(wide, logits=None), pool)
        with pytest.raises(ValueError, match="logits of a chain"):
            draft_pass(head, batch, make_cache(), wide, pool)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=4),
    least=st.floats(-30.0, 0.0),
    heat=st.sampled_from([0.0, 1.1]),
    workers=st.sampled_from([1, 2]),
)
@settings(max_examples=40, deadline=None)
def test_no_pass_is_made_once_all_paths_are_unlikely(
    shapes: list[tuple[int, int]], least: float, heat: float, workers: int
) -> None:
    shapes = sorted(shapes, key=lambda shape: -shape[1])
    lengths, depths = [s[0] for s in shapes], [s[1] for s in shapes]
    head, batch = make_head(*FORMS[0]), make_chain(lengths, depths, least)
    assert batch.chain is not None
    with ThreadPool(workers) as pool:
        short, whole = outputs_for(batch, heat), outputs_for(batch, heat)
        draft_pass(head, batch, make_cache(), short, pool)
        draft_pass(head, make_chain(lengths, depths), make_cache(), whole, pool)
    twin = outputs_for(batch, heat)
    draft_pass_reference(head, batch, make_cache(), twin, None)
    made, paths = len(lengths), torch.zeros(len(lengths), dtype=torch.float64)
    before = whole.log_probs[:made, 0]
    for count in batch.chain.counts:
        paths = paths[:count] + before[:count]
        if bool((paths < least).all()):
            break
        before = whole.log_probs[made : made + count, 0]
        made += count
    assert torch.equal(short.ids[:made], whole.ids[:made])
    assert torch.equal(short.log_probs[:made], whole.log_probs[:made])
    assert (short.ids[made:] == NOT_DRAFTED).all()
    assert (short.ids == NOT_DRAFTED).tolist() == (twin.ids == NOT_DRAFTED).tolist()
