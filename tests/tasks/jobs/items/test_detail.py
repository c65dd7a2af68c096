"""What a client reads of a job while it runs and for a while after: results, the list of items, one item."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, Any

import pytest
from sqlalchemy import delete

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store.artifacts import Artifacts
from store.database import Database
from store.records import JobChunk
from tasks.context import AppContext
from tasks.jobs.items import detail, results
from tasks.jobs.items import mixed as mixed_items
from tests.support.written_jobs import NUMBERS, TOTAL, Written


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)


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

    def told(after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        lines = b"".join(results.event_lines(written.context, written.job, after, limit)).splitlines()
        return [json.loads(line) for line in lines]

    assert [(event["sequence"], event["type"], event["task_id"]) for event in told()] == [
        (1, "deliberation.completed", "id-0"),
        (2, "deliberation.failed", "id-3"),
    ]
    assert told()[1]["error_type"] == "recipe_hangs"
    assert told(after=1) == told()[1:] and told(limit=1) == told()[:1] and told(after=2) == []
    with pytest.raises(RequestError, match="there are 2 lines"):
        told(after=3)


def test_an_item_of_a_recipe_without_events_is_told_by_its_state(written: Written) -> None:
    written.update(recipe="rollout", options={"model": "echo"})
    written.end((4, "failed"), error={"code": "no_answer", "message": None})
    (line,) = b"".join(results.event_lines(written.context, written.job, 0, None)).splitlines()
    event = json.loads(line)
    assert (event["sequence"], event["type"], event["number"], event["custom_id"]) == (1, "item.failed", 5, "id-5")
    assert event["error"] == {"code": "no_answer", "message": None}


def test_the_list_says_of_each_item_where_it_is(written: Written) -> None:
    written.admitted(4)
    written.ask("argue", (2, 1, 0, 0), (3, 1, 0, 0))
    written.end((0, "completed"))
    written.end((1, "stuck"), error={"code": "judge_failed", "message": None})
    page, more = written.listed()
    assert not more
    assert [(item.number, item.custom_id, item.state, item.turn, item.stage, item.reason) for item in page] == [
        (0, "id-0", "stuck", 2, None, "judge_failed"),
        (1, "id-1", "live", None, "argue", None),
        (2, "id-2", "live", None, "argue", None),
        (3, "id-3", "completed", 2, None, None),
        (4, "id-4", "pending", None, None, None),
        (5, "id-5", "pending", None, None, None),
    ]


def test_the_list_is_read_page_by_page_and_by_state_and_id(written: Written) -> None:
    written.end((0, "completed"), (1, "completed"), (4, "failed"))
    numbers: list[int] = []
    more, after = True, None
    while more:
        page, more = written.listed(limit=2, after=after)
        numbers += [item.number for item in page]
        after = numbers[-1]
    assert numbers == list(range(TOTAL))
    assert [item.number for item in written.listed(state="completed")[0]] == [0, 3]
    assert [item.number for item in written.listed(state="live", after=1)[0]] == [2, 4]
    assert [item.number for item in written.listed(custom_id="id-5")[0]] == [5]
    assert written.listed(custom_id="id-5", state="live") == ([], False)
    assert written.listed(custom_id="nobody") == ([], False)


def test_the_newest_line_of_an_item_counts(written: Written) -> None:
    written.end((0, "stuck"), (1, "stuck"))
    written.end((0, "completed"), life=2)
    by_number = {item.number: item for item in written.listed()[0]}
    assert (by_number[3].state, by_number[3].life) == ("completed", 2)
    assert (by_number[0].state, by_number[0].life) == ("stuck", 1)
    assert written.item(0).result == {"text": "since 0", "life": 2}


def test_an_item_shows_every_turn_with_its_requests_answers_and_judgements(written: Written) -> None:
    first = written.ask("argue", (0, 1, 0, 0), (0, 1, 1, 0), (1, 1, 0, 0))
    written.answer("argue", dict(zip(first, ("yes", "no", "other"), strict=True)))
    written.judge(
        (1, 2, 0, "score", {"score": 0}), (0, 2, 0, "score", {"score": 1.0}), (0, 2, 1, "score", {"score": 0})
    )
    written.ask("judge", (0, 1, 0, 0))
    item = written.item(0)
    assert (item.number, item.custom_id, item.state, item.stage) == (3, "id-3", "live", "judge")
    assert item.columns == {"prompt": "Why 3?"}
    assert [turn.turn for turn in item.turns] == [1, 2, 3]
    argue, score, judge = item.turns
    assert [request.custom_id for request in argue.requests] == ["id-3/argue.1.0", "id-3/argue.1.1"]
    assert [request.body["sample"] for request in argue.requests] == [0, 1]
    answered = argue.requests[1]
    assert answered.response is not None
    assert answered.response["choices"][0]["message"] == {"content": "no"}
    assert (answered.status_code, answered.seconds, answered.batch_id) == (200, 0.5, written.batches["argue"])
    assert [judgement.value["score"] for judgement in score.judgements] == [1.0, 0]
    assert (judge.requests[0].status_code, judge.requests[0].response) == (None, None)


def test_a_second_look_at_an_item_opens_no_file_without_it(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    for position in range(4):
        written.ask("argue", (position, 1, 0, 0))
        written.judge((position, 2, 0, "score", {"score": 1.0}))
    before = written.item(3)
    opened: set[str] = set()
    open_artifact = Artifacts.open

    def counted(artifacts: Artifacts, sha256: str) -> AbstractContextManager[IO[bytes]]:
        opened.add(sha256)
        return open_artifact(artifacts, sha256)

    monkeypatch.setattr(Artifacts, "open", counted)
    assert written.item(3) == before
    assert len(opened) == 3  # the items, one segment's plan, one chunk of judgements


def test_an_ended_item_has_its_result_and_its_times(written: Written) -> None:
    written.answer("argue", dict.fromkeys(written.ask("argue", (2, 1, 0, 0)), "yes"))
    written.judge((2, 2, 0, "check", {"passed": False}))
    written.end((2, "failed"), error={"code": "no_answer", "message": "none"})
    item = written.item(2)
    assert (item.state, item.reason, item.stage) == ("failed", "no_answer", None)
    assert item.error == {"code": "no_answer", "message": "none"}
    assert item.ended_at > item.started_at > time.time() - 60
    assert [(turn.turn, len(turn.requests), len(turn.judgements)) for turn in item.turns] == [(1, 1, 0), (2, 0, 1)]


def test_attempts_stand_side_by_side_in_one_turn_and_lives_apart(written: Written) -> None:
    written.ask("argue", (0, 1, 0, 0), (0, 1, 1, 0))
    written.ask("argue", (0, 1, 1, 1))
    written.ask("argue", (0, 2, 0, 0))
    written.ask("argue", (0, 1, 0, 0), life=2)
    turns = written.item(0).turns
    assert [(turn.life, turn.turn) for turn in turns] == [(1, 1), (1, 2), (2, 1)]
    assert [(request.sample, request.retry) for request in turns[0].requests] == [(0, 0), (1, 0), (1, 1)]


def test_requests_in_two_stages_at_once_are_one_turn(written: Written) -> None:
    """The second one has the sample that follows, so the turn before it is its own."""
    written.ask("argue", (0, 1, 0, 0))
    written.ask("judge", (0, 1, 1, 0))
    (turn,) = written.item(0).turns
    assert [request.stage for request in turn.requests] == ["argue", "judge"]


def test_a_request_that_no_engine_ran_stands_in_its_turn(written: Written) -> None:
    written.ask("argue", (0, 1, 0, 0))
    written.judge((0, 1, 1, "refused", {"ok": False, "error": {"code": "model_not_found"}}))
    (turn,) = written.item(0).turns
    assert (turn.requests[0].sample, turn.judgements[0].index) == (0, 1)


def test_a_duplicate_shows_the_body_that_it_shares(written: Written) -> None:
    lines = written.ask("argue", (0, 1, 0, 0), (1, 1, 0, 0), same=True)
    written.answer("argue", dict.fromkeys(lines, "both"))
    request = written.item(1).turns[0].requests[0]
    assert request.body == {"model": "echo", "position": 0, "sample": 0}
    assert request.response is not None
    assert request.response["choices"][0]["message"] == {"content": "both"}


def test_an_item_knows_those_beside_it(written: Written) -> None:
    assert [(item.previous, item.next) for item in map(written.item, (1, 0, 4))] == [(None, 1), (2, 4), (4, None)]


def test_items_that_are_sometimes_right_are_found_some_lines_at_a_time(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = {"text": "a", "score": 1.0}, {"text": "b", "score": 0}
    written.end((0, "completed"), samples=[right, wrong])
    written.end((1, "completed"), (2, "completed"), samples=[right, right])
    written.end((3, "failed"), samples=[right, wrong])
    written.end((4, "completed"), samples=[wrong, {"text": None, "error": {}}, right])
    written.end((5, "completed"))

    def mixed(after: int, limit: int = 10) -> tuple[list[int], int | None]:
        found, following = mixed_items.page(written.context, written.job, after, limit)
        return [item.number for item in found], following

    assert mixed(0) == ([NUMBERS[0], NUMBERS[4]], None)
    assert mixed(0, limit=1) == ([NUMBERS[0]], 1)
    assert mixed(1) == ([NUMBERS[4]], None)
    monkeypatch.setattr(mixed_items, "MIXED_ROWS", 3)
    assert mixed(1) == ([], 4)
    assert mixed(4) == ([NUMBERS[4]], None)
    monkeypatch.setattr(mixed_items, "MIXED_BYTES", 1)
    assert mixed(0) == ([NUMBERS[0]], 1)
    assert mixed(1) == ([], 2)
    found, _ = mixed_items.page(written.context, written.job, 4, 1)
    assert found[0].scores == [0.0, 1.0]


def test_items_that_had_not_ended_have_the_end_of_their_job(written: Written) -> None:
    written.end((0, "completed"))
    written.finished("expired")
    assert [item.state for item in written.listed()[0]] == [*["expired"] * 3, "completed", "expired", "expired"]


@pytest.mark.parametrize("number", [TOTAL, 2**70])
def test_there_is_no_item_beyond_the_last(written: Written, number: int) -> None:
    with pytest.raises(NotFoundError, match=f"no item {number}"):
        detail.item(written.context, written.job, number)


def test_long_after_its_end_a_job_refers_to_its_artifacts(written: Written, database: Database) -> None:
    written.end(*((position, "completed") for position in range(TOTAL)))
    written.finished("completed")
    assert len(written.results()) == TOTAL
    with database.write() as session:
        session.execute(delete(JobChunk))
    reads: list[Callable[[], object]] = [written.results, written.listed, lambda: written.item(0)]
    for read in reads:
        with pytest.raises(ConflictError) as refused:
            read()
        assert refused.value.code == "results_in_files"
