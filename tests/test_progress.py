"""Progress in logs and on terminals."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from specbatch.progress import PlainReporter, Rate, Snapshot, Tally, duration, open_reporter
from specbatch.progress.live import LiveReporter


def test_a_log_gets_plain_lines_at_each_tenth_and_no_carriage_return() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    tally = Tally(total=100, done=35)
    reporter.phase("loading model")
    reporter.begin(tally)
    for done in range(36, 101):
        tally.done = done
        reporter.tick(Snapshot("running", 2, 100 - done, done))
    reporter.close()
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    assert [line.split()[1] for line in lines] == [
        *("loading", "35/100", "40/100", "50/100", "60/100", "70/100", "80/100", "90/100", "100/100")
    ]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_silent_phase_still_shows_a_heartbeat() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream, heartbeat_s=0.02)
    reporter.phase("loading model")
    limit = time.monotonic() + 10
    while stream.getvalue().count("\n") < 3 and time.monotonic() < limit:
        time.sleep(0.005)
    reporter.close()
    assert stream.getvalue().count("loading model ...") >= 2


def test_rate_counts_this_attempt_only() -> None:
    times = iter([100.0, 110.0])
    tally = Tally(total=50, done=20, slo_met=3, slo_missed=1)
    rate = Rate(tally, lambda: next(times))
    tally.done, tally.failed = 30, 2
    described = rate.describe(Snapshot("running", 4, 0, 250))
    assert described == "25 tokens/s, 4 in flight, ETA 20s, 2 failed, SLO 75%"


def test_durations_have_two_units_at_most() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.6, 75, 3600, 7380, 1e6)] == [
        "0s",
        "1m00s",
        "1m15s",
        "1h00m",
        "2h03m",
        "11d13h",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_fields_of_the_bar_stay_where_they_are(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    live = LiveReporter(Console(file=stream, force_terminal=True, width=width, color_system=None))
    moment = [0.0]
    monkeypatch.setattr("specbatch.progress.live.Rate", lambda tally: Rate(tally, lambda: moment[0]))
    tally = Tally(total=100_000, done=7)
    live.begin(tally)
    lines: list[str] = []
    for done, tokens, failed in ((7, 0, 0), (8, 3, 0), (123, 99_000, 0), (99_999, 2_000_000, 41)):
        tally.done, tally.failed, tally.slo_met, moment[0] = done, failed, done - 7, moment[0] + 100
        live._drawn = 0.0
        live.tick(Snapshot("running", 1 + done // 4000, 5, tokens))
        found = live._progress.make_tasks_table(live._progress.tasks)
        lines.append("".join(segment.text for segment in live._progress.console.render(found)).rstrip())
    live.close()
    for word in ("running", "/100000", " tok/s", "  ETA", "  SLO"):
        assert len({line.index(word) for line in lines}) == 1, lines
    assert max(map(len, lines)) <= width
    assert "41 failed" in lines[-1]


def test_a_terminal_gets_a_bar_and_a_file_gets_lines_whatever_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    reporter = open_reporter(io.StringIO())
    reporter.close()
    assert isinstance(reporter, PlainReporter)
    stream = io.StringIO()
    live = LiveReporter(Console(file=stream, force_terminal=True, width=100))
    tally = Tally(total=10, done=1)
    live.phase("loading model")
    live.begin(tally)
    tally.done = 4
    live.tick(Snapshot("running", 2, 4, 50))
    live.message("a remark")
    live.close()
    assert "4/10" in stream.getvalue()
    assert "a remark" in stream.getvalue()
