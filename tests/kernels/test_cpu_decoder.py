"""Whole passes: equal to the twin, and a token's bits depend on its keys alone."""

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
    Activations,
    AttentionKeys,
    DecoderBatch,
    DecoderOutputs,
    KvCache,
    PackedDecoder,
    Placement,
    ThreadPool,
    decoder_pass,
    decoder_pass_reference,
    pack,
)
from specbatch_kernels.cpu.packing import WeightType  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.decoders import (  # noqa: E402
    HIDDEN,
    INNER,
    PAGE,
    PAGES,
    VOCABULARY,
    close,
    make_batch,
    make_cache,
    make_decoder,
    run,
)
from tests.kernels.isas import ISAS  # noqa: E402
from tests.kernels.matrices import FORMATS, ROUNDED_ELSEWHERE  # noqa: E402

INPUTS: list[Activations] = ["float32", "int8"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "inputs"), FORMATS)
@pytest.mark.parametrize("qwen", [False, True])
def test_pass_equals_its_twin(isa: Isa, kind: WeightType, inputs: Activations, qwen: bool) -> None:
    decoder = make_decoder(kind, inputs, qwen=qwen)
    limit = 1e-5 if inputs == "float32" else ROUNDED_ELSEWHERE
    cache = make_cache()
    exact_cache = KvCache(cache.k.double(), cache.v.double(), PAGE)
    with ThreadPool(2, isa=isa) as pool:
        for rows in ([(0, 0, 11), (2, 0, 5)], [(0, 11, 1), (2, 5, 1)], [(0, 12, 1)]):
            batch = replace(
                make_batch(rows), wanted=torch.tensor([1, 0]) if len(rows) > 1 else torch.tensor([0])
            )
            outputs = run(decoder, batch, cache, pool)
            exact = DecoderOutputs(
                torch.empty(outputs.logits.shape, dtype=torch.float64),
                torch.empty(3, len(batch.tokens), HIDDEN, dtype=torch.float64),
            )
            decoder_pass_reference(decoder, batch, exact_cache, exact, None)
            assert close(outputs.logits, exact.logits, limit)
            assert close(outputs.captured, exact.captured, limit)
    assert torch.equal(cache.k.isnan(), exact_cache.k.isnan())
    assert close(cache.k.nan_to_num(), exact_cache.k.nan_to_num(), limit)
    assert close(cache.v.nan_to_num(), exact_cache.v.nan_to_num(), limit)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(ISAS), st.sampled_from(INPUTS), st.data())
def test_bits_do_not_depend_on_how_tokens_are_spread_over_passes(
    isa: Isa, inputs: Activations, data: st.DataObject
) -> None:
    """Rows of 12 tokens in one pass, against random parts of random rows with other thread counts."""
    decoder = make_decoder("q4_1", inputs, qwen=True)
    with ThreadPool(1, isa=isa) as one, ThreadPool(data.draw(st.integers(2, 3)), isa=isa) as many:
        whole = run(decoder, make_batch([(row, 0, 12) for row in range(4)]), make_cache(), one).logits
        cache, done = make_cache(), [0] * 4
        while min(done) < 12:
            open_rows = [row for row in range(4) if done[row] < 12]
            chosen = data.draw(st.lists(st.sampled_from(open_rows), min_size=1, unique=True))
            parts = [(row, done[row], data.draw(st.integers(1, 12 - done[row]))) for row in chosen]
            logits = run(decoder, make_batch(parts), cache, many).logits
            expected = [whole[12 * row + first : 12 * row + first + count] for row, first, count in parts]
            assert torch.equal(logits, torch.cat(expected))
            for row, _, count in parts:
                done[row] += count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_drafted_tree_node_equals_plain_decoding(isa: Isa, inputs: Activations) -> None:
    """Two branches after five tokens; the second branch is the text that plain decoding has."""
    decoder = make_decoder("q8_0", inputs, qwen=False)
    plain = make_batch([(0, 0, 7)])
    cache = make_cache()
    with ThreadPool(2, isa=isa) as pool:
        expected = run(decoder, plain, make_cache(), pool).logits
        run(decoder, make_batch([(0, 0, 5)]), cache, pool)
        tree = DecoderBatch(
            tokens=torch.tensor([1, 2, int(plain.tokens[5]), int(plain.tokens[6])]),
            placement=Placement(torch.tensor([5, 6, 5, 6]), torch.tensor([5, 6, 7, 8])),
            keys=AttentionKeys(
                page_table=plain.keys.page_table,
                token_row=torch.zeros(4, dtype=torch.int32),
                context_len=torch.full((4,), 5, dtype=torch.int32),
                extra_offsets=torch.tensor([0, 1, 3, 4, 6], dtype=torch.int32),
                extra_positions=torch.tensor([5, 5, 6, 7, 7, 8], dtype=torch.int32),
            ),
            wanted=torch.arange(4),
        )
        drafted = run(decoder, tree, cache, pool).logits
    assert torch.equal(drafted[2:], expected[5:])
    assert not torch.equal(drafted[:2], expected[5:])


def test_pass_without_wanted_tokens_only_fills_the_cache() -> None:
    decoder, full, silent = make_decoder("q4_0", qwen=False), make_cache(), make_cache()
    batch = make_batch([(1, 0, 9)])
    with ThreadPool(2) as pool:
        run(decoder, batch, full, pool)
        decoder_pass(
            decoder,
            replace(batch, wanted=torch.zeros(0, dtype=torch.int64)),
            silent,
            DecoderOutputs(torch.empty(0, VOCABULARY)),
            pool,
        )
    assert torch.equal(full.k.nan_to_num(), silent.k.nan_to_num())
    assert torch.equal(full.v.nan_to_num(), silent.v.nan_to_num())


def test_indices_outside_are_refused() -> None:
    decoder, cache, batch = make_decoder("f32", qwen=False), make_cache(), make_batch([(0, 0, 2)])
    place = batch.placement
    wrong = {
        "vocabulary": replace(batch, tokens=torch.tensor([0, VOCABULARY])),
        "rotary": replace(batch, placement=replace(place, positions=torch.tensor([0, 64]))),
        "cache": replace(batch, placement=replace(place, slots=torch.tensor([0, PAGE * PAGES]))),
        "not in the pass": replace(batch, wanted=torch.tensor([0, 2])),
        "page": replace(
            batch, keys=replace(batch.keys, context_len=torch.tensor([1, 41], dtype=torch.int32))
        ),
    }
    with ThreadPool(1) as pool:
        for message, bad in wrong.items():
            with pytest.raises(ValueError, match=message):
                run(decoder, bad, cache, pool)


def test_matrices_that_do_not_fit_are_refused() -> None:
    decoder = make_decoder("f32", qwen=False)
    layer = replace(decoder.layers[1], output=decoder.layers[1].down)
    with pytest.raises(ValueError, match="output: expected"):
        PackedDecoder([decoder.layers[0], layer], decoder.parts)
    layer = replace(decoder.layers[1], gate_up=pack(torch.randn(2 * INNER, HIDDEN), "f32"))
    with pytest.raises(ValueError, match="gated matrix"):
        PackedDecoder([decoder.layers[0], layer], decoder.parts)
