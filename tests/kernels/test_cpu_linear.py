"""Linear layers on packed weights: exact weights, accuracy, and rows that do not depend on their batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import Activations, Packer, ThreadPool  # noqa: E402
from specbatch_kernels.cpu.linear import (  # noqa: E402
    gated_linear,
    gated_linear_reference,
    linear,
    linear_reference,
)
from specbatch_kernels.cpu.packing import (  # noqa: E402
    PackedMatrix,
    WeightType,
    pack,
    pack_gated,
    source_row_bytes,
    unpack,
)
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.isas import ISAS  # noqa: E402
from tests.kernels.matrices import FORMATS, KINDS, random_source, run  # noqa: E402

GGUF_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 8}
NAN = float("nan")


def exact_weights(kind: WeightType, source: torch.Tensor) -> torch.Tensor:
    """What the format's own library makes of it."""
    if kind == "f32":
        return source
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return torch.from_numpy(np.array(dequantize(source.numpy(), GGMLQuantizationType(GGUF_TYPES[kind]))))


def reference(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    out = torch.full((len(x), matrix.rows // 2 if matrix.gated else matrix.rows), NAN, dtype=torch.float64)
    (gated_linear_reference if matrix.gated else linear_reference)(x.double(), matrix, out, None)
    return out


def assert_close(found: torch.Tensor, wanted: torch.Tensor, terms: float = 0.0) -> None:
    """Relative to the largest output, or to what the terms come to that may cancel each other out in it.

    Float32 sums of products of either sign cannot promise more: an output that is alone may be such a rest.
    """
    allowed = max(1e-5 * float(wanted.abs().max()), 1e-7 * terms)
    assert float((found.double() - wanted).abs().max()) <= allowed


def largest_terms(x: torch.Tensor, matrix: PackedMatrix) -> float:
    """The largest output if no two terms had opposite signs; of a gated layer without its gate's curve."""
    sums = x.double().abs() @ unpack(matrix).double().abs().T
    if matrix.gated:
        gate, up = sums.chunk(2, dim=1)
        sums = gate * up
    return float(sums.max())


@st.composite
def layers(draw: st.DrawFn) -> tuple[PackedMatrix, torch.Tensor]:
    kind, inputs = draw(st.sampled_from(FORMATS))
    cols = draw(st.sampled_from([1, 7, 64, 300] if kind == "f32" else [32, 64, 288, 320, 576]))
    rows = draw(st.sampled_from([1, 3, 8, 16, 17, 40, 100]))
    seed = draw(st.integers(0, 99))
    if draw(st.booleans()):
        matrix = pack_gated(
            random_source(kind, rows, cols, seed), random_source(kind, rows, cols, seed + 1), kind, inputs
        )
    else:
        bias = torch.randn(rows) if draw(st.booleans()) else None
        matrix = pack(random_source(kind, rows, cols, seed), kind, bias, inputs)
    tokens = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 19, 64, 97, 110]))
    return matrix, torch.randn(tokens, cols, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 16, 21])
def test_packing_keeps_every_weight_exactly(kind: WeightType, rows: int) -> None:
    source, other = random_source(kind, rows, 96), random_source(kind, rows, 96, seed=1)
    assert torch.equal(unpack(pack(source, kind)), exact_weights(kind, source))
    both = torch.cat([exact_weights(kind, source), exact_weights(kind, other)])
    assert torch.equal(unpack(pack_gated(source, other, kind)), both)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_multiplies_the_exact_weights(isa: Isa, kind: WeightType) -> None:
    """Unit vectors read the matrix back, with few tokens and with many."""
    source = random_source(kind, 37, 64)
    with ThreadPool(1, isa=isa) as pool:
        for tokens in (1, 3, 64):
            units = [torch.eye(64)[start : start + tokens] for start in range(0, 64, tokens)]
            weights = torch.cat([run(unit, pack(source, kind), pool) for unit in units]).T
            assert torch.equal(weights, exact_weights(kind, source))


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(ISAS), st.integers(1, 3))
def test_close_to_float64_and_writes_every_output(
    case: tuple[PackedMatrix, torch.Tensor], isa: Isa, workers: int
) -> None:
    matrix, x = case
    with ThreadPool(workers, isa=isa) as pool:
        assert_close(run(x, matrix, pool), reference(x, matrix), largest_terms(x, matrix))


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(ISAS), st.data())
def test_row_does_not_depend_on_its_batch_or_threads(
    case: tuple[PackedMatrix, torch.Tensor], isa: Isa, data: st.DataObject
) -> None:
    matrix, x = case
    chosen = data.draw(st.lists(st.sampled_from(range(len(x))), min_size=1, max_size=20))
    with ThreadPool(1, isa=isa) as one, ThreadPool(data.draw(st.integers(2, 4)), isa=isa) as many:
        assert torch.equal(run(x[chosen], matrix, many), run(x, matrix, one)[chosen])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("inputs", ["float32", "int8"])
def test_every_batch_size_gives_the_same_bits(isa: Isa, inputs: Activations) -> None:
    x = torch.randn(110, 576, generator=torch.Generator().manual_seed(5))
    matrix = pack(random_source("q4_1", 48, 576), "q4_1", activations=inputs)
    with ThreadPool(2, isa=isa) as pool:
        whole = run(x, matrix, pool)
        for tokens in range(1, 66):
            assert torch.equal(run(x[:tokens], matrix, pool), whole[:tokens]), tokens


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 20])
def test_accumulate_adds_to_the_residual(isa: Isa, tokens: int) -> None:
    matrix = pack(random_source("q8_0", 35, 64), "q8_0", torch.randn(35))
    x, residual = torch.randn(tokens, 64), torch.randn(tokens, 35)
    with ThreadPool(2, isa=isa) as pool:
        out = residual.clone()
        linear(x, matrix, out, pool, accumulate=True)
        assert torch.equal(out, residual + run(x, matrix, pool))
    wanted = residual.double()
    linear_reference(x.double(), matrix, wanted, None, accumulate=True)
    assert_close(out, wanted)


def test_packer_holds_matrices_apart() -> None:
    sources = [random_source("q4_1", rows, 64, rows) for rows in (16, 33, 700)]
    alone, packer = [pack(source, "q4_1") for source in sources], Packer(4096)
    together = [packer.stacked([source], "q4_1") for source in sources]
    packer.run()
    assert all(torch.equal(a.data, b.data) for a, b in zip(alone, together, strict=True))
    assert all(matrix.data.data_ptr() % 64 == 0 for matrix in together)
    gate = packer.gated(sources[0], sources[0], "q4_1")
    packer.run()
    assert torch.equal(gate.data, pack_gated(sources[0], sources[0], "q4_1").data)
    assert all(torch.equal(a.data, b.data) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "inputs"), FORMATS)
@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf")])
def test_input_that_is_no_number_reaches_its_row_only(
    isa: Isa, kind: WeightType, inputs: Activations, poison: float
) -> None:
    x = torch.randn(9, 64)
    x[4, 10] = poison
    with ThreadPool(2, isa=isa) as pool:
        out = run(x, pack(random_source(kind, 40, 64), kind, activations=inputs), pool)
    assert (~out.isfinite()).all(dim=1).tolist() == [i == 4 for i in range(9)]


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(ISAS), st.floats(-40, 18))
def test_rounded_inputs_are_off_by_half_a_step(
    case: tuple[PackedMatrix, torch.Tensor], isa: Isa, exponent: float
) -> None:
    """No output is farther from that of the inputs as they are than all its inputs half a step away."""
    matrix, x = replace(case[0], bias=None), case[1] * 10.0**exponent
    if matrix.gated or matrix.activations == "float32":
        return
    largest = x.double().abs().reshape(len(x), -1, 32).amax(-1)
    steps = (largest / 127).repeat_interleave(32, dim=1)
    rounding = steps / 2 @ unpack(matrix).double().abs().T
    unrounded = reference(x, replace(matrix, activations="float32"))
    with ThreadPool(2, isa=isa) as pool:
        found = run(x, matrix, pool)
    leeway = 1e-5 * largest_terms(x, matrix) + 1e-28
    assert bool(((found.double() - unrounded).abs() <= rounding * 1.001 + leeway).all())


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_rounded_inputs_are_multiplied_exactly_within_a_block(kind: WeightType) -> None:
    """The largest quants that there are: what would overflow 16 bits, were they added up in them."""
    source = random_source(kind, 16, 32)
    source[:, -32 if kind == "q8_0" else -16 :] = 0x80 if kind == "q8_0" else 0xFF
    matrix = pack(source, kind, activations="int8")
    for sign in (1.0, -1.0):
        x = torch.full((6, 32), sign * 127.0)
        for isa in ISAS:
            with ThreadPool(1, isa=isa) as pool:
                assert_close(run(x, matrix, pool), reference(x, matrix))


def test_no_tokens_is_no_work() -> None:
    with ThreadPool(2) as pool:
        assert run(torch.empty(0, 64), pack(random_source("q4_0", 40, 64), "q4_0"), pool).shape == (0, 40)


def test_wrong_shapes_are_refused() -> None:
    matrix, gated = pack(torch.ones(4, 8), "f32"), pack_gated(torch.ones(4, 8), torch.ones(4, 8), "f32")
    with ThreadPool(1) as pool:
        with pytest.raises(ValueError, match="x: expected"):
            linear(torch.ones(2, 7), matrix, torch.empty(2, 4), pool)
        with pytest.raises(ValueError, match="out: expected"):
            linear(torch.ones(2, 8), matrix, torch.empty(4, 2).T, pool)
        with pytest.raises(ValueError, match="gated_linear"):
            linear(torch.ones(2, 8), gated, torch.empty(2, 4), pool)
        with pytest.raises(ValueError, match="pack_gated"):
            gated_linear(torch.ones(2, 8), matrix, torch.empty(2, 4), pool)
    with pytest.raises(ValueError, match="whole q4_0 blocks"):
        pack(torch.zeros(4, 35, dtype=torch.uint8), "q4_0")
    with pytest.raises(ValueError, match="multiple"):
        source_row_bytes("q8_0", 40)
    with pytest.raises(ValueError, match="same shape"):
        pack_gated(torch.ones(4, 8), torch.ones(5, 8), "f32")
    with pytest.raises(ValueError, match="bias"):
        pack(torch.ones(4, 8), "f32", torch.ones(5))
