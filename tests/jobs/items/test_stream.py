"""The ended items of a job, and their events, as lines that a reader goes on with anywhere."""

from __future__ import annotations

import pytest

from batchyard.errors import RequestError
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import Written


def test_results_are_lines_in_the_order_of_their_ends_and_a_reader_goes_on_anywhere(written: Written) -> None:
    assert written.results() == []
    written.end((1, "completed"), (0, "failed"), error={"code": "no_answer", "message": None})
    written.end((3, "completed"))
    lines = written.results()
    assert [(line["number"], line["state"]) for line in lines] == [(0, "completed"), (3, "failed"), (2, "completed")]
    assert lines[0]["result"] == {"text": "since 1", "life": 1}
    assert lines[1]["error"] == {"code": "no_answer", "message": None}
    assert "position" not in lines[0]
    for after in range(4):
        for limit in (1, 2, None):
            assert written.results(after, limit) == lines[after:][:limit]
    with pytest.raises(RequestError, match="there are 3 lines"):
        written.results(4)


def test_item_events_are_what_the_recipe_tells_and_a_reader_goes_on_by_the_last_sequence(written: Written) -> None:
    written.update(recipe="panel", options={"model": "echo", "agents": ["DEV"], "rounds": 0})
    written.end((1, "completed"))
    written.end((0, "failed"), error={"code": "recipe_hangs", "message": None})

    assert [(event["sequence"], event["type"], event["task_id"]) for event in written.events()] == [
        (1, "deliberation.completed", "id-0"),
        (2, "deliberation.failed", "id-3"),
    ]
    assert written.events()[1]["error_type"] == "recipe_hangs"
    assert (
        written.events(after=1) == written.events()[1:]
        and written.events(limit=1) == written.events()[:1]
        and written.events(after=2) == []
    )
    with pytest.raises(RequestError, match="there are 2 lines"):
        written.events(after=3)


def test_an_item_of_a_recipe_without_events_is_told_by_its_state(written: Written) -> None:
    written.update(recipe="rollout", options={"model": "echo"})
    written.end((4, "failed"), error={"code": "no_answer", "message": None})
    (event,) = written.events()
    assert (event["sequence"], event["type"], event["number"], event["custom_id"]) == (1, "item.failed", 5, "id-5")
    assert event["error"] == {"code": "no_answer", "message": None}


@on_sqlite
def test_an_item_that_only_waits_has_a_line_and_no_event(written: Written) -> None:
    written.update(recipe="rollout", options={"model": "echo"})
    written.end((0, "waiting_for_verdict"), gate="house")
    written.end((1, "completed"))
    assert [line["state"] for line in written.results()] == ["waiting_for_verdict", "completed"]
    (event,) = written.events()
    assert (event["sequence"], event["type"]) == (2, "item.completed"), "the number of its line"
