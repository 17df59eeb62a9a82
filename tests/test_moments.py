"""Times of day: every date has one, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.config.moments import Moment, date_of
from specbatch.errors import ConfigError
from specbatch.settings import load_config

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "UTC",
)


def seconds(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("06:00 Europe/Berlin", seconds(2026, 11, 30, 1), "2026-11-30 06:00:00 CET"),
        ("06:00 Europe/Berlin", seconds(2026, 11, 30, 5), "2026-12-01 06:00:00 CET"),
        ("6:00 +05:30", seconds(2026, 11, 30), "2026-11-30 06:00:00 UTC+05:30"),
        ("06:00:30Z", seconds(2026, 11, 30), "2026-11-30 06:00:30 UTC"),
        ("06:00", seconds(2026, 11, 30), "2026-11-30 06:00:00 UTC"),
        ("2026-12-24 18:00 Europe/Berlin", seconds(2026, 11, 30), "2026-12-24 18:00:00 CET"),
        ("2026-01-01 06:00 UTC", seconds(2026, 11, 30), "2026-01-01 06:00:00 UTC"),
        # 2:30 does not exist: the clock goes from 2:00 to 3:00.
        ("02:30 Europe/Berlin", seconds(2026, 3, 28, 22), "2026-03-29 03:00:00 CEST"),
        ("03:00 Europe/Berlin", seconds(2026, 3, 28, 22), "2026-03-29 03:00:00 CEST"),
        # 2:30 comes twice, an hour apart: the first counts, and after it the next day's.
        ("02:30 Europe/Berlin", seconds(2026, 10, 24, 22), "2026-10-25 02:30:00 CEST"),
        ("02:30 Europe/Berlin", seconds(2026, 10, 25, 0, 45), "2026-10-26 02:30:00 CET"),
        # Midnight itself is skipped.
        ("00:30 America/Sao_Paulo", seconds(2018, 11, 3, 12), "2018-11-04 01:00:00 -02"),
    ],
)
def test_the_next_moment_is_the_first_at_which_the_clock_has_reached_it(
    text: str, start: float, expected: str
) -> None:
    assert Moment.parse(text, "UTC").spelled(start) == expected


@given(
    st.sampled_from(ZONES),
    st.times(),
    st.floats(seconds(2015, 1, 1), seconds(2035, 1, 1), allow_nan=False),
)
@settings(max_examples=150, deadline=None)
def test_every_moment_is_later_than_the_start_by_a_day_at_most_and_nothing_lies_between(
    zone: str, clock: object, start: float
) -> None:
    moment = Moment.parse(f"{str(clock)[:8]} {zone}")
    found = moment.after(start)
    assert start < found <= start + 25 * 3600
    wall = datetime.fromtimestamp(found, moment.zone)
    just_before = datetime.fromtimestamp(found - 1, moment.zone)
    assert wall.time() >= moment.clock
    assert just_before.time() < moment.clock or just_before.date() < wall.date()
    assert moment.after(found - 1) == found
    assert moment.after(found) > found + 22 * 3600


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"deadline": "06:00"}, "deadline = '06:00': say in which time zone (or set tz): write 06:00"),
        ({"deadline": "six"}, "deadline = 'six': expected a time of day and its zone"),
        ({"deadline": "25:00 UTC"}, "deadline = '25:00 UTC': hour must be in 0..23"),
        ({"deadline": "06:00 Mars/Base"}, "'Mars/Base' is not a time zone"),
        ({"deadline": "06:00", "tz": "Nowhere"}, "'Nowhere' is not a time zone"),
        ({"deadline": "0001-01-01 06:00 +10:00"}, "expected a year from 1970"),
        ({"out": "x/{dat}"}, "out: there is no {dat}; a run directory may have {date} and {shard} in it"),
        ({"out": "x/{shard}"}, "out has {shard} in it, but no shard is given"),
        ({"shard": "0/3"}, "shard = '0/3': expected i/n with i from 1 to n"),
        ({"shard": "4/3"}, "shard = '4/3': expected i/n with i from 1 to n"),
    ],
)
def test_times_and_places_that_mean_nothing_are_refused_with_what_to_write(
    given: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"input": ("x",), **given}, environ={})
    assert what in caught.value.what


def test_the_runs_deadline_depends_on_its_first_start_and_nothing_else() -> None:
    config = JobConfig(input=("x",), deadline="06:00", tz="Europe/Berlin", out=Path("r/{date}"))
    first = seconds(2026, 11, 29, 23)
    assert config.run_deadline(first) == seconds(2026, 11, 30, 5)
    assert config.run_deadline(first + 7 * 3600) == seconds(2026, 12, 1, 5), "a new start has a new one"
    assert JobConfig(input=("x",)).run_deadline(first) is None


def test_dates_are_those_of_the_jobs_zone() -> None:
    moment = seconds(2026, 11, 30, 23, 30)
    assert date_of(moment, "UTC") == date(2026, 11, 30)
    assert date_of(moment, "Europe/Berlin") == date(2026, 12, 1)
    assert abs(date_of(moment, None) - date(2026, 11, 30)) <= timedelta(days=1)
