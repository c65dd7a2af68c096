"""A command that is run again finds what it made the first time, and nothing that cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchyard.client import resume
from batchyard.client.api import ApiClient

MARK = resume.fingerprint("run", "1" * 64)
OTHER = resume.fingerprint("run", "2" * 64)


def batch(name: str, status: str = "completed", mark: dict[str, str] | None = MARK, **ours: Any) -> dict[str, Any]:
    return {
        "object": "batch",
        "id": name,
        "status": status,
        "metadata": mark,
        "batchyard": {"retry_of": None, **ours},
    }


def test_equal_parts_have_equal_marks_whatever_their_order() -> None:
    assert resume.fingerprint({"a": 1, "b": 2}) == resume.fingerprint({"b": 2, "a": 1})
    assert resume.fingerprint("a", 1) != resume.fingerprint("a", 2)


def test_the_newest_with_the_mark_is_found_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [batch("other", mark=OTHER), batch("unmarked", mark=None), batch("new"), batch("old")]
    document = resume.Earlier(batches).find(MARK)
    assert document is not None and document["id"] == "new"
    assert capsys.readouterr().err == "taking up batch new (completed); --again computes all of it anew\n"


@pytest.mark.parametrize(
    ("stays", "expected"),
    [
        (
            True,
            [
                "batch_a goes on at http://x; `batchyard cancel batch_a` ends it",
                "job_b goes on at http://x; `batchyard job cancel job_b` ends it",
            ],
        ),
        (False, [f"{name} stops with the server that this command has started" for name in ("batch_a", "job_b")]),
    ],
)
def test_what_is_left_after_ctrl_c_is_said_with_how_to_end_it(stays: bool, expected: list[str]) -> None:
    left = [batch("batch_a", "in_progress"), batch("job_b", "validating"), batch("batch_c", "completed")]
    server = cast(ApiClient, SimpleNamespace(url="http://x", stays=stays))
    assert resume.goes_on(server, left).splitlines() == expected


@pytest.mark.parametrize("status", ["failed", "expired", "cancelling", "cancelled"])
def test_what_cannot_go_on_is_passed_over(status: str) -> None:
    assert resume.Earlier([batch("ended", status)]).find(MARK) is None
    document = resume.Earlier([batch("ended", status), batch("old", "in_progress")]).find(MARK)
    assert document is not None and document["id"] == "old"


def test_a_retry_has_its_sources_mark_and_is_passed_over() -> None:
    assert resume.Earlier([batch("retry", retry_of="batch_1")]).find(MARK) is None


def test_the_list_is_read_once_and_no_further_than_needed(capsys: pytest.CaptureFixture[str]) -> None:
    fetched = []

    def fetch() -> Iterator[dict[str, Any]]:
        for one in (batch("a"), batch("b", mark=OTHER), batch("c")):
            fetched.append(one["id"])
            yield one

    earlier = resume.Earlier(fetch())
    assert earlier.find(MARK, None) is not None and fetched == ["a"]
    assert earlier.find(OTHER, None) is not None and fetched == ["a", "b"]
    assert earlier.find(MARK, None) is not None and fetched == ["a", "b"]
    assert earlier.find(resume.fingerprint("none"), None) is None and fetched == ["a", "b", "c"]
    assert capsys.readouterr().err == "", "without a remedy nothing is said"


def test_one_that_was_taken_up_already_leaves_the_next_older_one() -> None:
    earlier = resume.Earlier([batch("new"), batch("other", mark=OTHER), batch("old")])
    assert [
        document and document["id"]
        for document in (earlier.find(MARK, None, without=taken) for taken in ((), ("new",), ("new", "old"), ()))
    ] == ["new", "old", None, "new"]
