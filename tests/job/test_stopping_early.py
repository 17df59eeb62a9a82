"""A rate of failures ends a run that makes no sense; everything else runs to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, TooManyFailures
from specbatch.job.outcome import WARM_UP_ROWS, StopRule, lower_bound
from specbatch.rows import Status
from specbatch.signals import Interrupts

from .fake_engine import World
from .jobs import manifest, results, run, save_job


def prompts(total: int, bad: range) -> dict[str, object]:
    return {"prompt": [f"{'unspeakable' if row in bad else 'fine'} {row}" for row in range(total)]}


def test_a_rate_far_above_the_limit_ends_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    config = save_job(tmp_path, prompts(400, range(5, 200)), max_failures="10%")
    world = World()
    with pytest.raises(
        TooManyFailures, match=r"95 of the first 100 rows failed \(max_failures = 10%\)"
    ) as caught:
        run(config, world)
    assert caught.value.exit_code == ExitCode.ROW_FAILURES
    assert len(world.engine.served) == WARM_UP_ROWS
    attempt = manifest(config)["attempts"][0]
    assert (attempt["rows"], attempt["exit_code"]) == (100, 1)
    assert not (tmp_path / "out" / "results.parquet").exists()
    with pytest.raises(TooManyFailures):
        run(config)
    assert run(config).exit_code == ExitCode.ROW_FAILURES, "200 good rows were left; the whole is judged"
    assert len(results(config)) == 400


def test_a_number_of_failures_is_judged_at_the_end_only(tmp_path: Path) -> None:
    config = save_job(tmp_path, prompts(150, range(140)), max_failures=3)
    assert run(config).exit_code == ExitCode.ROW_FAILURES
    assert len(results(config)) == 150


def test_fail_on_truncated_counts_towards_the_rate(tmp_path: Path) -> None:
    table = prompts(200, range(0))
    assert run(save_job(tmp_path / "a", table, max_failures="1%")).exit_code == ExitCode.OK
    with pytest.raises(TooManyFailures, match="of the first 100 rows failed"):
        run(save_job(tmp_path / "b", table, max_failures="1%", fail_on="truncated"))


@pytest.mark.parametrize(
    ("fail_on", "max_failures", "code"),
    [((), 0, ExitCode.OK), ("truncated", 0, ExitCode.ROW_FAILURES), ("truncated", "90%", ExitCode.OK)],
)
def test_truncated_rows_fail_only_when_asked(
    tmp_path: Path, fail_on: object, max_failures: object, code: ExitCode
) -> None:
    config = save_job(tmp_path, prompts(30, range(0)), fail_on=fail_on, max_failures=max_failures)
    assert run(config).exit_code == code


@pytest.mark.parametrize(
    ("wanted", "code"), [(0.4, ExitCode.OK), (0.6, ExitCode.ATTAINMENT), (None, ExitCode.OK)]
)
def test_too_little_attainment_has_an_exit_code_of_its_own(
    tmp_path: Path, wanted: float | None, code: ExitCode
) -> None:
    table: dict[str, object] = {"prompt": ["a", "b", "c"], "deadline_s": [1e6, -1.0, None]}
    outcome = run(save_job(tmp_path, table, min_attainment=wanted))
    assert outcome.exit_code == code
    assert ("50.0% of the SLOs" in outcome.verdict) == (code == ExitCode.ATTAINMENT)


@given(st.integers(1, 10_000).flatmap(lambda ended: st.tuples(st.integers(0, ended), st.just(ended))))
def test_the_bound_lies_between_nothing_and_the_rate_itself(counts: tuple[int, int]) -> None:
    failed, ended = counts
    bound = lower_bound(failed, ended)
    assert -1e-12 <= bound <= failed / ended + 1e-12
    assert (bound > 1e-12) == (failed > 0)


def test_a_few_unlucky_rows_do_not_end_a_run() -> None:
    rule = StopRule(Interrupts(), JobConfig(input=("a",), max_failures="1%"))
    for row in range(1000):
        rule.saw(Status.ERROR if row < 3 else Status.OK)
        assert not rule.requested
    rule.check()
