"""The compiled sampling kernel chooses what :func:`specbatch.sampling.choose` chooses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specbatch_kernels.cpu import ThreadPool, available, sample

from specbatch.engine.compiled_executor import sampling_row
from specbatch.randomness import Purpose, Stream
from specbatch.rows import SamplingParams
from specbatch.sampling import Draw, choose

pytestmark = pytest.mark.skipif(not available(), reason="the kernels were not compiled")

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 5000]),
    top_p=st.sampled_from([0.1, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
)


def draw(params: SamplingParams, number: int, history: tuple[int, ...]) -> Draw:
    stream = Stream.at(7, f"row {number}", Purpose.TOKEN)
    return Draw(params, stream, 3 + number, history)


@settings(deadline=None)
@given(st.lists(PARAMS, min_size=1, max_size=6), st.integers(0, 2**31), st.integers(0, 5))
def test_same_choice_as_the_torch_rule(params: list[SamplingParams], seed: int, broken: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn((len(params), 1000), generator=generator)
    if broken < len(params):
        logits[broken, 17] = float("nan")
    history = torch.randperm(1000, generator=generator)[:20].sort().values.tolist()
    draws = [draw(each, i, tuple(history) if i % 2 else ()) for i, each in enumerate(params)]
    with ThreadPool(1) as pool:
        chosen = sample(logits, [sampling_row(place, each) for place, each in enumerate(draws)], pool)
    found = [None if token < 0 else token for token in chosen]
    assert found == choose(logits, draws)
    assert (found[broken] is None) if broken < len(found) else None not in found
