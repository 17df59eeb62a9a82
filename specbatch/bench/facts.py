"""What stands beside the numbers of a comparison: definitions, baselines, how good the predictions were."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from specbatch.bench.figures import TOTAL
from specbatch.bench.results import GOODPUT, CaseResult, is_baseline
from specbatch.bench.rounds import PLAIN_RUNS
from specbatch.energy.meter import NoMeter
from specbatch.hardware.correction import PredictionError

SLO_DEFINITION = (
    "met by a row that has an answer and whose promises all held: TPOT is its mean time per output token "
    "after the first; TTFT and the deadline of its last token count from its arrival"
)
DISTURBING = 0.1
"""Share of the machine's CPU time from which on other processes are mentioned."""

ADVICE = "the numbers are worth little; let nothing else work here"


def facts(result: CaseResult) -> Iterator[tuple[str, str]]:
    """Name and text of each, for people."""
    rounds = result.rounds
    if rounds.case.mixes or any(each.by_tier[TOTAL]["attainment"] for each in result.policies.values()):
        yield "SLO", SLO_DEFINITION
    if rounds.plain is not None:
        yield "1x", _reference(result)
    yield "ratios", _ratios(result)
    for name, each in result.policies.items():
        errors = {"passes": each.pass_error, "drafts": each.draft_error}
        told = [f"{what} off by {_off(error)}" for what, error in errors.items() if error is not None]
        if told:
            yield "predicted", f"{name}: {', '.join(told)}"
    yield "time sel.", "deferral, selection and calibration, as a share of the time with something to do"
    yield "texts", _texts(result)
    shares = [each.by_tier[TOTAL]["others_cpu_share"] for each in result.policies.values()]
    taken = [share for share in shares if share is not None]
    if taken and max(share.high for share in taken) > DISTURBING:
        middle, most = statistics.median(share.median for share in taken), max(share.high for share in taken)
        yield (
            "disturbed",
            f"other processes took {middle:.0%} of the CPU time, {most:.0%} in one run: {ADVICE}",
        )
    yield "J/token", _energy(result)
    for name, each in result.policies.items():
        if each.notice:
            yield "notice", f"{name}: {each.notice}"


def _reference(result: CaseResult) -> str:
    """What factors are factors of, and whether it still holds."""
    plain = result.rounds.plain
    assert plain is not None, "asked for without"
    text = (
        f"plain decoding of the same rows, all there from the start, measured first in {PLAIN_RUNS} runs: "
        f"{1e3 * plain.tpot_s:.1f} ms per token, {plain.ttft_s:.2f} s to the first, "
        f"{plain.e2e_s:.2f} s to the last"
    )
    if "alone" in result.rounds.case.relative:
        text += f"; of a row that is alone (1x alone): {1e3 * plain.alone_tpot_s:.1f} ms per token"
    during = result.policies["off"].by_tier[TOTAL]["tpot_ms_p50"] if "off" in result.policies else None
    if during is not None:
        text += f"; off took {during.median:.1f} ms in the comparison"
    return text


def _ratios(result: CaseResult) -> str:
    text = "to off: output tokens/s of the same repeat"
    if result.best is None:
        return text
    known = ", ".join(name for name in result.policies if is_baseline(name))
    measure = "goodput (output tokens/s of rows that met)" if result.measure == GOODPUT else "output tokens/s"
    return f"{text}; to best: {measure} against {result.best}, the best in that of {known}"


def _energy(result: CaseResult) -> str:
    """Joules per output token, idle power included, or why there are none."""
    meter = result.rounds.meter
    if isinstance(meter, NoMeter):
        return f"none: {meter.reason}"
    told = []
    for name, each in result.policies.items():
        joules, ratio = each.by_tier[TOTAL]["joules_per_token"], each.joules_to_off
        if joules is not None:
            told.append(
                f"{name} {joules.median:.3g}" + ("" if ratio is None else f" ({ratio.median:.2f} x off)")
            )
    return f"{', '.join(told) or 'the meter failed'}; {meter.method}: {meter.scope}"


def _off(error: PredictionError) -> str:
    return f"{error.median:.0%} at the median, {error.p90:.0%} at p90 (bias {error.bias:+.0%})"


def _texts(result: CaseResult) -> str:
    different = {name: each.differing_rows for name, each in result.policies.items() if each.differing_rows}
    if not different:
        return "the same under all policies, token by token"
    listed = ", ".join(f"{name} in {rows} rows" for name, rows in different.items())
    return f"NOT the same under all policies: {listed} unlike {next(iter(result.policies))}"
