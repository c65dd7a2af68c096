"""One item of a job with all that has happened to it, while the job runs and for a while after."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import IO

import pytest

from batchyard.errors import NotFoundError
from jobs.items import detail
from store.artifacts import Artifacts
from tests.support.written_jobs import TOTAL, Written


def test_an_item_shows_every_turn_with_its_requests_answers_and_judgements(written: Written) -> None:
    first = written.ask("argue", (0, 1, 0, 0), (0, 1, 1, 0), (1, 1, 0, 0))
    written.answer("argue", dict(zip(first, ("yes", "no", "other"), strict=True)))
    written.judge(
        (1, 2, 0, "score", {"score": 0}), (0, 2, 0, "score", {"score": 1.0}), (0, 2, 1, "score", {"score": 0})
    )
    written.ask("judge", (0, 1, 0, 0), turn=3)
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
    assert [(request.sample, request.retry) for request in turns[0].requests] == [(1, 0), (2, 0), (2, 1)]


def test_requests_in_two_stages_at_once_are_one_turn(written: Written) -> None:
    written.ask("argue", (0, 1, 0, 0))
    written.ask("judge", (0, 1, 1, 0))
    (turn,) = written.item(0).turns
    assert [request.stage for request in turn.requests] == ["argue", "judge"]


def test_a_request_that_no_engine_ran_stands_in_its_turn(written: Written) -> None:
    written.ask("argue", (0, 1, 0, 0))
    written.judge((0, 1, 1, "refused", {"ok": False, "error": {"code": "model_not_found"}}))
    (turn,) = written.item(0).turns
    assert (turn.requests[0].sample, turn.judgements[0].index) == (1, 2)


def test_a_duplicate_shows_the_body_that_it_shares(written: Written) -> None:
    lines = written.ask("argue", (0, 1, 0, 0), (1, 1, 0, 0), same=True)
    written.answer("argue", dict.fromkeys(lines, "both"))
    request = written.item(1).turns[0].requests[0]
    assert request.body == {"model": "echo", "position": 0, "sample": 0}
    assert request.response is not None
    assert request.response["choices"][0]["message"] == {"content": "both"}


def test_an_item_knows_those_beside_it(written: Written) -> None:
    assert [(item.previous, item.next) for item in map(written.item, (1, 0, 4))] == [(None, 1), (2, 4), (4, None)]


@pytest.mark.parametrize("number", [TOTAL, 2**70])
def test_there_is_no_item_beyond_the_last(written: Written, number: int) -> None:
    with pytest.raises(NotFoundError, match=f"no item {number}"):
        detail.item(written.context, written.job, number)
