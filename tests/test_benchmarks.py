"""The benchmark against transformers computes what its docstring says."""

from __future__ import annotations

import pytest

from benchmarks import peers


def test_ratio_is_the_median_of_paired_ratios() -> None:
    # One slow moment hits both sides of the second repeat and must not change the ratio.
    pairs = [((1.0, 9.0), (1.0, 3.0)), ((10.0, 90.0), (10.0, 30.0)), ((1.0, 8.0), (1.0, 4.0))]
    timings = [{"llama.cpp": peers.Timing(*peer), peers.OURS: peers.Timing(*ours)} for peer, ours in pairs]
    result = peers.summarise(16, 64, "llama.cpp", timings)
    assert result["ratio"] == pytest.approx(3.0)
    assert result["ratio_decode"] == pytest.approx(4.0)
    assert (result["ratio_decode_min"], result["ratio_decode_max"]) == pytest.approx((7 / 3, 4.0))


def test_decode_speed_leaves_the_first_tokens_out() -> None:
    timing = peers.Timing(first=2.0, total=9.0)
    assert timing.tokens_per_s(rows=4, tokens=64) == pytest.approx(4 * 64 / 9.0)
    assert timing.decode_tokens_per_s(rows=4, tokens=64) == pytest.approx(4 * 63 / 7.0)


def test_timings_drowned_in_noise_are_refused() -> None:
    with pytest.raises(RuntimeError, match="too noisy"):
        peers.Timing(first=2.0, total=1.9).decode_tokens_per_s(rows=4, tokens=64)


def test_prompts_are_short_and_distinct_at_every_batch_size_we_report() -> None:
    for rows in (1, 4, 16, 32):
        prompts = peers.sample_prompts(rows)
        assert len(set(prompts)) == rows
        assert all(len(prompt.split()) <= peers.MAX_WORDS for prompt in prompts)


def test_a_side_that_produces_another_number_of_tokens_is_refused() -> None:
    class Pipe:
        def send(self, request: object) -> None: ...

        def recv(self) -> tuple[int, float]:
            return 7, 1.0

    worker = object.__new__(peers.Worker)
    worker._pipe = Pipe()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="expected 2 tokens, got 7"):
        worker.time(["a", "b"], 64)
