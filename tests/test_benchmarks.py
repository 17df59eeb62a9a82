"""The benchmark against transformers computes what its docstring says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from benchmarks import acceptance, peers, speculation, training_prompts, workloads


@pytest.fixture(scope="module")
def training() -> list[training_prompts.Prompt]:
    return training_prompts.generate(8000, seed=0)


@pytest.mark.parametrize("program", [speculation, acceptance])
def test_prompt_sets_that_are_not_there_are_named_with_the_place_they_were_looked_for(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workloads, "PUBLIC", tmp_path)
    monkeypatch.setattr(speculation, "prepare_environment", lambda _: None)
    program.main(["--sets", "gsm8k", "humaneval"])
    assert capsys.readouterr().err.splitlines() == [
        f"skipped {name}: there is no {tmp_path / name}.parquet" for name in ("gsm8k", "humaneval")
    ]


def test_the_sets_that_are_there_are_kept() -> None:
    assert workloads.those_there(["rewriting", "heldout"]) == {
        "rewriting": workloads.rewriting(),
        "heldout": workloads.heldout(),
    }


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


def without_digits(prompt: str) -> str:
    return " ".join(re.sub(r"\d", "", prompt.lower()).split())


def test_a_head_is_trained_on_no_prompt_that_measures_it(training: list[training_prompts.Prompt]) -> None:
    measured = {without_digits(prompt) for prompts in workloads.SETS.values() for prompt in prompts()}
    assert len(measured) >= len(workloads.heldout()) + len(workloads.rewriting())
    assert measured.isdisjoint(without_digits(prompt.text) for prompt in training)


def test_no_function_to_complete_carries_the_name_of_a_measured_one(
    training: list[training_prompts.Prompt],
) -> None:
    measured = {
        name for prompts in workloads.SETS.values() for prompt in prompts() for name in defined(prompt)
    }
    assert "rotate" in measured
    assert measured.isdisjoint(name for prompt in training for name in defined(prompt.text))


def defined(prompt: str) -> list[str]:
    return re.findall(r"^def (\w+)\(.*\) ->", prompt, re.MULTILINE)


def test_training_prompts_are_distinct_and_no_template_gives_more_than_one_in_a_hundred(
    training: list[training_prompts.Prompt],
) -> None:
    assert len({prompt.text for prompt in training}) == len(training)
    assert Counter(prompt.template for prompt in training).most_common(1)[0][1] <= len(training) / 100


def test_training_prompts_follow_from_the_seed(training: list[training_prompts.Prompt]) -> None:
    assert training_prompts.generate(8000, seed=0) == training
    assert training_prompts.generate(50, seed=1) != training[:50]


def test_every_slot_of_a_training_prompt_is_filled(training: list[training_prompts.Prompt]) -> None:
    # Braces with quotes or digits inside are dictionaries of the functions' examples.
    assert not [prompt.text for prompt in training if re.search(r"\{[\^a-zA-Z#2|]+\}", prompt.text)]


def test_training_prompts_are_written_as_a_table(tmp_path: Path) -> None:
    assert training_prompts.main([str(tmp_path / "out.parquet"), "--rows", "30", "--seed", "7"]) == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "prompt"]
    assert len(set(table["id"].to_pylist())) == 30
    assert table["prompt"].to_pylist() == [prompt.text for prompt in training_prompts.generate(30, seed=7)]


def test_as_many_training_prompts_as_promised_can_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(training_prompts.generate(training_prompts.MAX_ROWS, seed=3)) == training_prompts.MAX_ROWS
    with pytest.raises(SystemExit):
        training_prompts.main([str(tmp_path / "out.parquet"), "--rows", str(training_prompts.MAX_ROWS + 1)])
    assert str(training_prompts.MAX_ROWS) in capsys.readouterr().err
