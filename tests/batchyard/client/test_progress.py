"""The wait for batches ends with the last one, outlives a web app that is away, and shows no more than is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchyard.client import progress
from batchyard.errors import UnavailableError


def batch(status: str, completed: int = 0, failed: int = 0, total: int = 3) -> dict[str, Any]:
    return {"status": status, "request_counts": {"completed": completed, "failed": failed, "total": total}}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only while the client sleeps."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(progress.time, "sleep", sleep)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def scripted(*states: list[dict[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    rest = list(states)
    return lambda: rest.pop(0)


def test_a_log_gets_a_line_every_ten_seconds_at_most_and_only_a_new_one(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    states = [[batch("in_progress", number // 21)] for number in range(42)]
    ended = progress.follow(
        scripted(*states, [batch("completed", 3)]), lambda _: "", lambda one: f"{progress.counts(one)}"
    )
    assert [one["status"] for one in ended] == ["completed"]
    assert capsys.readouterr().err.splitlines() == ["0/0/3", "1/0/3", "3/0/3"]


def test_several_batches_are_awaited_until_the_last_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    states = scripted([batch("completed"), batch("in_progress")], [batch("completed"), batch("failed")])
    ended = progress.follow(states, lambda _: "", lambda _: "")
    assert [one["status"] for one in ended] == ["completed", "failed"]
    assert capsys.readouterr().err.splitlines() == ["1 of 2 have ended"]


def test_counts_say_what_they_are_of_and_are_left_out_before_there_are_any() -> None:
    assert progress.labelled(batch("in_progress", 1)) == "  1/0/3 answered/failed/total"
    validating = {"request_counts": {"total": 0, "completed": 0, "failed": 0}}
    assert progress.labelled(validating) == ""


def test_a_quiet_wait_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress.follow(scripted([batch("completed", 3)]), lambda _: "x", lambda _: "x", quiet=True)
    assert capsys.readouterr().err == ""


def test_a_web_app_that_comes_back_within_two_minutes_is_waited_for(clock: list[float]) -> None:
    begun = clock[0]

    def fetch() -> str:
        if clock[0] < begun + 100:
            raise UnavailableError("away")
        return "here"

    assert progress.patiently(fetch) == "here"


def test_a_web_app_that_stays_away_is_given_up(clock: list[float]) -> None:
    begun = clock[0]

    def away() -> None:
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        progress.patiently(away)
    assert progress.AWAY_SECONDS <= clock[0] - begun < progress.AWAY_SECONDS + 5


def test_a_share_is_rounded_down_so_that_100_means_all() -> None:
    assert progress.percent(batch("in_progress", 998, 1, 1000)) == "99 %"
    assert progress.percent(batch("in_progress", 999, 1, 1000)) == "100 %"
    assert progress.percent(batch("validating", total=0)) is None
    assert progress.bar(batch("in_progress", 1, 1, 4)) == f"[{'#' * 12}{'-' * 12}] 50 %"


def test_reasons_of_a_refusal_name_their_line_if_they_have_one() -> None:
    errors = [{"line": 3, "message": "No.", "code": "a"}, {"line": None, "message": "Empty.", "code": "b"}]
    refused = {"errors": {"data": errors}}
    assert progress.problems(refused) == ["line 3: No. (a)", "Empty. (b)"]
    assert progress.problems(refused, 1) == ["line 3: No. (a)"]
    assert progress.problems({"errors": None}) == []
