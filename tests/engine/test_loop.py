"""The engine's loop on a model with a known table: exact, complete, and right at every row's end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.randomness import Purpose, Stream
from specbatch.rows import FinishReason, Prompt, SamplingParams, Status
from specbatch.sampling import Draw, choose_one
from specbatch.slo import Slo
from tests.engine.table_model import (
    CONFIG,
    EOS,
    POISON,
    StepClock,
    TableExecutor,
    run,
    table_logits,
    word_tokenizer,
)


def job(**settings: object) -> JobConfig:
    return JobConfig.model_validate({"input": ("memory",), "policy": "off", **settings})


def prompt(index: int, tokens: list[int], **settings: object) -> Prompt:
    params = SamplingParams(max_tokens=12)
    base = Prompt(index, f"key{index}", f"id{index}", "standard", tuple(tokens), params)
    return replace(base, **settings)  # type: ignore[arg-type]


def decode_alone(p: Prompt) -> list[int]:
    """Plain decoding of one row, written without the engine."""
    tokens = list(p.token_ids)
    address = p.key if p.params.seed is None else f"seed:{p.params.seed}"
    stream = Stream.at(0, address, Purpose.TOKEN)
    while len(tokens) - len(p.token_ids) < p.params.max_tokens:
        history = tuple(sorted(set(tokens))) if p.params.repetition_penalty != 1.0 else ()
        token = choose_one(table_logits(tokens), Draw(p.params, stream, len(tokens), history))
        tokens.append(token)
        if token == EOS:
            break
    return tokens[len(p.token_ids) :]


def texts(prompts: list[Prompt], config: JobConfig, executor: TableExecutor) -> dict[int, tuple[int, ...]]:
    host = StepClock()
    run(list(prompts), config, executor, host)
    return {i: answer.token_ids for i, answer in host.answers.items()}


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0, 1.7]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    max_tokens=st.integers(1, 20),
    seed=st.sampled_from([None, 7]),
)
rows = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=20), params), min_size=1, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(
    rows,
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(11, 40),
    st.booleans(),
    st.sampled_from([1, 3, 4]),
    st.randoms(use_true_random=False),
)
def test_text_is_a_function_of_the_row_alone(
    spec: list[tuple[list[int], SamplingParams]],
    max_rows: int,
    chunk: int,
    tokens_of_memory: int,
    sharing: bool,
    page_size: int,
    order: object,
) -> None:
    prompts = [prompt(i, tokens, params=p) for i, (tokens, p) in enumerate(spec)]
    expected = {p.row_index: tuple(decode_alone(p)) for p in prompts}
    order.shuffle(prompts)  # type: ignore[attr-defined]
    config = job(max_rows_in_flight=max_rows, prefill_chunk=chunk, prefix_sharing=sharing)
    executor = TableExecutor(num_pages=(40 + tokens_of_memory) // page_size + 2, page_size=page_size)
    assert texts(prompts, config, executor) == expected


def test_the_property_above_sees_preemption_sharing_and_recomputation() -> None:
    prompts = [prompt(i, [1, 2, 3, 1, 2], params=SamplingParams(max_tokens=16)) for i in range(6)]
    for sharing in (True, False):
        host, config = StepClock(), job(max_rows_in_flight=3, prefix_sharing=sharing)
        stats = run(list(prompts), config, TableExecutor(num_pages=13, page_size=4), host)
        answers = host.answers.values()
        assert stats.preemptions == sum(a.num_preemptions for a in answers) > 0
        assert stats.recomputed_tokens == sum(a.recomputed_tokens for a in answers)
        assert any(a.cached_prompt_tokens == 4 for a in answers) is sharing
        assert (stats.recomputed_tokens > 0) is not sharing
        assert len({a.token_ids for a in answers}) == 1


def test_every_row_ends_exactly_once_and_faulty_ones_stop_nobody() -> None:
    prompts: list[Prompt | None] = [prompt(0, [1]), None, prompt(2, [POISON, 3]), prompt(3, [2, 2])]
    host = StepClock()
    run(prompts, job(), TableExecutor(), host)
    assert host.refused == {1: (Status.REJECTED, "empty_prompt")}
    assert host.answers[2].status is Status.ERROR
    assert host.answers[2].error_code == "nan_logits"
    assert host.answers[2].text is None
    assert [host.answers[i].token_ids for i in (0, 3)] == [
        tuple(decode_alone(p)) for p in (prompt(0, [1]), prompt(3, [2, 2]))
    ]


def test_end_of_sequence_ends_a_row_as_ok_and_is_not_text() -> None:
    candidates = [prompt(i, [i % 30, i // 30], params=SamplingParams(max_tokens=200)) for i in range(12)]
    ending = next(p for p in candidates if decode_alone(p)[-1] == EOS)
    host = StepClock()
    run([ending], job(), TableExecutor(), host)
    answer = host.answers[ending.row_index]
    assert (answer.status, answer.finish_reason) == (Status.OK, FinishReason.STOP)
    assert answer.token_ids[-1] == EOS
    assert answer.text == word_tokenizer().decode(list(answer.token_ids[:-1]))


def test_the_token_limit_truncates() -> None:
    host = StepClock()
    run([prompt(0, [1], params=SamplingParams(max_tokens=1))], job(), TableExecutor(), host)
    assert (host.answers[0].status, host.answers[0].finish_reason) == (
        Status.TRUNCATED,
        FinishReason.LENGTH,
    )
    assert host.answers[0].output_tokens == 1
    assert host.answers[0].tpot_ms is None


def test_a_stop_string_ends_the_text_before_it_even_on_the_last_token() -> None:
    plain = decode_alone(prompt(0, [1]))
    word = f"a{plain[2]}"
    assert plain.index(plain[2]) == 2
    for limit in (3, 12):
        stopping = prompt(0, [1], params=SamplingParams(max_tokens=limit, stop=(word,)))
        host = StepClock()
        run([stopping], job(), TableExecutor(), host)
        answer = host.answers[0]
        assert answer.finish_reason is FinishReason.STOP
        assert answer.token_ids == tuple(plain[:3])
        assert answer.text is not None
        assert word not in answer.text
        assert answer.text.split() == [f"a{t}" for t in plain[:2]]


def test_rows_arrive_when_they_say_and_latency_counts_from_there() -> None:
    early, late = prompt(0, [1]), prompt(1, [2], arrival=100.0)
    host = StepClock()
    run([early, late], job(), TableExecutor(), host)
    answer = host.answers[1]
    assert answer.admitted_at is not None
    assert answer.admitted_at >= 100.0
    assert answer.ttft_s == pytest.approx(0.0, abs=1.0)
    assert host.answers[0].finished_at < 100.0


def test_a_tight_deadline_at_the_end_of_the_file_runs_first() -> None:
    prompts = [prompt(i, [i % 4]) for i in range(8)] + [prompt(8, [1], slo=Slo(deadline=14.0))]
    host = StepClock()
    run(list(prompts), job(max_rows_in_flight=1), TableExecutor(), host)
    assert next(iter(host.answers)) == 8
    assert host.answers[8].deadline_met is True


def test_rows_past_their_deadline_are_answered_last_or_dropped() -> None:
    prompts = [prompt(0, [1], slo=Slo(deadline=-1.0)), prompt(1, [2])]
    host = StepClock()
    run(list(prompts), job(max_rows_in_flight=1), TableExecutor(), host)
    assert list(host.answers) == [1, 0]
    assert host.answers[0].deadline_met is False
    assert host.answers[0].succeeded
    host, executor = StepClock(), TableExecutor()
    run(list(prompts), job(late="drop"), executor, host)
    assert host.refused == {0: (Status.EXPIRED, "deadline_passed")}
    assert all(1 not in step.tokens for step in executor.steps[:1])


def test_a_running_row_expires_when_late_rows_are_dropped() -> None:
    prompts = [prompt(0, [1], slo=Slo(deadline=3.5)), prompt(1, [2])]
    host = StepClock()
    run(list(prompts), job(late="drop"), TableExecutor(), host)
    assert host.answers[0].status is Status.EXPIRED
    assert host.answers[1].succeeded


def test_a_row_that_can_never_fit_is_refused_with_the_number() -> None:
    host = StepClock()
    run([prompt(0, [1] * 60), prompt(1, [2])], job(), TableExecutor(num_pages=11), host)
    assert host.refused == {0: (Status.REJECTED, "kv_memory_exceeded")}
    assert host.answers[1].succeeded


def test_a_stop_request_leaves_after_the_step_and_loses_nothing_finished() -> None:
    prompts = [prompt(i, [i], params=SamplingParams(max_tokens=2 + i)) for i in range(4)]
    host = StepClock(stop_after=3)
    run(list(prompts), job(), TableExecutor(), host)
    assert sorted(host.answers) == [0, 1]


def test_passes_and_flops_add_up() -> None:
    host = StepClock()
    prompts = [prompt(i, [1, 2, i], params=SamplingParams(max_tokens=5)) for i in range(3)]
    stats = run(list(prompts), job(prefix_sharing=False), TableExecutor(), host)
    answers = host.answers.values()
    assert stats.row_passes == sum(a.target_passes for a in answers) == sum(a.output_tokens for a in answers)
    assert stats.prefill_tokens == sum(a.prompt_tokens for a in answers)
    assert stats.decode_tokens == sum(a.output_tokens - 1 for a in answers)
    assert stats.output_tokens == sum(a.output_tokens for a in answers)
    assert stats.prefill_flops == pytest.approx(sum(a.prefill_flops for a in answers))
    assert stats.verify_flops == pytest.approx(sum(a.verify_flops for a in answers))
    matrices = 8 * (2 * 8 + 2 * 4) + 3 * 8 * 16
    head = 2 * CONFIG.vocab_size * 8
    keys = 4 * 8 * (1 + 2 + 3)
    assert host.answers[0].prefill_flops == 2 * 3 * matrices + keys + head
