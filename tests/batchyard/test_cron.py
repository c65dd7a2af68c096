"""When a cron expression comes, also on the days when the clock changes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard import cron
from batchyard.errors import RequestError

# In Europe/Berlin the clock goes from 02:00 to 03:00 on 29 March 2026, and from 03:00 back to 02:00 on 25 October.
SPRING = int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp())
AUTUMN = int(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp())
EXPRESSIONS = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "15,45 2 * * *",
        "*/20 2 * * *",
        "0 0 29 2 *",
        "0 3 * * SUN",
        "30 */2 * * *",
    ]
)
ZONES = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Santiago",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
        "Asia/Beirut",
    ]
)


def shown(expression: str, after: int, number: int, zone: str = "Europe/Berlin") -> list[str]:
    """The times as the clock on the wall shows them, with its difference from UTC."""
    times = cron.parse(expression, zone)
    return [times.local(time).strftime("%d %H:%M%z") for time in itertools.islice(times.after(after), number)]


def test_a_time_is_the_same_on_the_clock_in_summer_and_in_winter() -> None:
    assert shown("30 6 * * *", SPRING, 2) == ["29 06:30+0200", "30 06:30+0200"]
    assert shown("30 6 * * *", AUTUMN, 2) == ["25 06:30+0100", "26 06:30+0100"]


def test_a_time_that_the_clock_skips_comes_once_right_after_the_gap() -> None:
    assert shown("30 2 * * *", SPRING, 2) == ["29 03:00+0200", "30 02:30+0200"]
    assert shown("15,45 2 * * *", SPRING, 2) == ["29 03:00+0200", "30 02:15+0200"]


def test_a_time_that_the_clock_shows_twice_comes_once() -> None:
    assert shown("30 2 * * *", AUTUMN, 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_asked_between_the_two_a_time_that_has_come_does_not_come_again() -> None:
    between = int(datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp())  # 02:10, for the second time
    assert shown("30 2 * * *", between, 1) == ["26 02:30+0100"]


def test_what_goes_by_the_hour_comes_every_hour_that_there_is() -> None:
    hours = shown("0 * * * *", AUTUMN + 11 * 3600, 4)
    assert hours == ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100", "25 04:00+0100"]
    assert shown("0 * * * *", SPRING + 12 * 3600, 2) == ["29 03:00+0200", "29 04:00+0200"]


def test_months_that_have_no_such_day_are_left_out() -> None:
    assert shown("0 0 31 * *", SPRING, 3, "UTC") == ["31 00:00+0000"] * 3


@given(
    expression=EXPRESSIONS,
    zone=ZONES,
    first=st.integers(SPRING - 400 * 86400, AUTUMN + 400 * 86400),
    seconds=st.integers(0, 40 * 86400),
    limit=st.integers(1, 120),
)
def test_the_last_times_are_those_that_all_times_end_with(
    expression: str, zone: str, first: int, seconds: int, limit: int
) -> None:
    times = cron.parse(expression, zone)
    until = first + min(seconds, 3 * 86400 if expression.startswith("*") else seconds)
    every = list(itertools.takewhile(lambda time: time <= until, times.after(first - 1)))
    assert times.last(first, until, limit) == every[-limit:]
    assert every == sorted(set(every))
    for time in every[:20]:  # a time is one wherever one starts to look
        assert times.next(time - 1) == time


@given(text=st.text(max_size=40) | st.from_regex(r"([0-9*/,#LWA-Z-]{1,8} ){4}[0-9*/,#LWA-Z-]{1,8}", fullmatch=True))
def test_what_is_no_expression_is_refused_and_never_a_fault(text: str) -> None:
    try:
        times = cron.parse(text, "UTC")
    except RequestError as error:
        assert (error.param, error.code) == ("cron", "invalid_value")
    else:
        assert times.next(SPRING) is not None


@pytest.mark.parametrize("zone", ["", "berlin", "Europe", "../UTC", "/etc/passwd", "Europe/Berlin\x00", "CEST+3:99"])
def test_what_is_no_time_zone_is_refused_with_one_that_is_near_or_an_example(zone: str) -> None:
    with pytest.raises(RequestError, match=r"did you mean '.+'|name one of IANA's, such as 'Europe/Berlin'") as refused:
        cron.parse("* * * * *", zone)
    assert refused.value.param == "timezone"


def test_a_time_zone_that_is_like_none_gets_no_guess() -> None:
    with pytest.raises(RequestError, match=r"there is no 'Mars/Phobos'; name one of IANA's"):
        cron.parse("* * * * *", "Mars/Phobos")


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("*/90 * * * *", "the step of the minute '*/90' reaches no second value, so it would run at minute 0 alone"),
        ("*/60 * * * *", "minute 0 alone"),
        ("5,10/55 * * * *", "the minute '10/55' reaches no second value, so it would run at minute 10 alone"),
        ("0-10/15 * * * *", "minute 0 alone"),
        ("0 */24 * * *", "hour 0 alone"),
        ("0 0 */31 * *", "day-of-month 1 alone"),
        ("0 0 1 */12 *", "month 1 alone"),
        ("0 0 * * */7", "day-of-week 0 alone"),
        ("50-10 * * * *", "the minute '50-10' is neither a value of 0-59, nor a range that rises"),
        ("0 22-6 * * *", "the hour '22-6' is neither"),
        ("0 0 * * FRI-MON", "the day-of-week 'FRI-MON' is neither a value of 0-7 or SUN-SAT"),
        ("0 0 * FOO *", "the month 'FOO' is neither a value of 1-12 or JAN-DEC"),
        ("0 0 32 * *", "the day-of-month '32' is neither"),
        ("*/0 * * * *", "the minute '*/0' is neither"),
        ("1,,2 * * * *", "the minute '' is neither"),
        (f"{'9' * 5000} * * * *", "the minute '9999"),
    ],
)
def test_a_field_that_does_not_do_what_it_says_is_refused_with_what_it_would_do(expression: str, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        cron.parse(expression, "UTC")
    assert refused.value.param == "cron" and says in refused.value.message


@pytest.mark.parametrize("expression", ["*/7 * * * *", "*/30 * * * *", "0 */7 * * *", "0 0 * * MON-FRI", "0 0 L * *"])
def test_a_field_with_a_step_within_its_range_is_taken(expression: str) -> None:
    assert cron.parse(expression, "UTC").next(SPRING) is not None
