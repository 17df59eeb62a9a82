"""A comparison as people see it, kept as files in ``tests/golden``."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from specbatch.bench.facts import facts
from specbatch.bench.results import CaseResult, judge
from specbatch.bench.rounds import Rounds, run_rounds
from specbatch.bench.show import print_case, print_overview
from specbatch.hardware.correction import PredictionError
from tests.bench.bench_rig import cases, quiet, rig
from tests.bench.test_rounds import MIXED
from tests.engine.drafters import Oracle
from tests.engine.test_speculation import future
from tests.golden_files import check

POLICIES = ("off", "priority", "fixed:2", "eagle")


def steady(rounds: Rounds) -> CaseResult:
    """Judged with what stays the same: policies think in real time, and their predictions are tuned."""
    error = PredictionError(100, median=0.04, p90=0.1, bias=-0.02)
    told = []
    for runs in rounds.rounds:
        for run in runs.values():
            run.stats.select_s = 0.01 * run.seconds
        calm = {policy: replace(run, others_share=0.0) for policy, run in runs.items()}
        told.append({**calm, "off": replace(calm["off"], pass_error=error, draft_error=error)})
    return judge(replace(rounds, rounds=tuple(told)))


@pytest.fixture(scope="module")
def mixed() -> CaseResult:
    case = cases(MIXED, max_rows_in_flight=16)[0]
    return steady(run_rounds(rig(Oracle(future=future, wrong_from=3)), case, POLICIES, 2, quiet))


@pytest.mark.parametrize("width", [80, 120])
def test_a_case_fits_its_page(width: int, mixed: CaseResult) -> None:
    stream = io.StringIO()
    print_case(mixed, stream, width)
    text = stream.getvalue()
    check(f"bench-{width}", text)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_several_cases_are_put_side_by_side() -> None:
    found = [
        steady(run_rounds(rig(), case, ("off", "priority"), 1, quiet))
        for case in cases({"rows": 4, "cases": [{"rows_in_flight": 1}, {"rows_in_flight": 4}]})
    ]
    stream = io.StringIO()
    print_overview(found, stream, 80)
    check("bench-overview-80", stream.getvalue())


def test_what_a_policy_could_not_do_is_told(mixed: CaseResult) -> None:
    run = mixed.rounds.rounds[0]["eagle"]
    run.stats.policy_notice = "plain decoding: no profile"
    told = dict(facts(judge(mixed.rounds)))
    run.stats.policy_notice = ""
    assert told["notice"] == "eagle: plain decoding: no profile"


def test_a_machine_that_did_other_work_meanwhile_is_told_to_be(mixed: CaseResult) -> None:
    rounds = mixed.rounds
    first, second = rounds.rounds
    busy = {**second, "off": replace(second["off"], others_share=0.4)}
    told = dict(facts(judge(replace(rounds, rounds=(first, busy)))))
    assert told["disturbed"].startswith("other processes took 0% of the CPU time, 40% in one run")
    assert "disturbed" not in dict(facts(mixed))
