"""The journal of a job: a row for each request, judgement and reply, and answers that a later job takes from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.endpoints import output_lines
from jobs.finishing import journal
from jobs.finishing.journal import Journal
from jobs.stage_records import StageRecords
from store.artifacts import Artifacts
from store.formats import asks, chunks, job_chunks
from store.records import JobReply

NUMBERS = np.array([4, 2], np.int64)
"""Item 4 of the input was the first to begin."""
ASK, OTHER = b"a" * 16, b"b" * 16


def request(line: int, position: int, custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "echo", "seed": line, "messages": []}
    return {
        **{"line": line, "custom_id": custom_id, "body": json.dumps(body), "same_as": None, "fingerprint": None},
        **{"position": position, "life": 1, "visit": 1, "sample": 0, "retry": 0, "ask": ASK, "turn": 1},
    } | changes


def answer(line: int, text: str | None) -> dict[str, Any]:
    choices = [{"message": {"content": text}, "finish_reason": "stop"}]
    body = orjson.dumps({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    error = {"code": "request_timeout", "message": "too long"}
    output = output_lines.line("x", 200, body, None) if text is not None else output_lines.line("x", None, None, error)
    return {"line": line, "ok": text is not None, "answer": output, "seconds": 0.5}


@pytest.fixture
def write(artifacts: Artifacts) -> Callable[..., str]:
    """Writes the journal of a job with one stage. Returns its SHA-256."""

    def make(
        requests: list[dict[str, Any]],
        answers: list[dict[str, Any]],
        judgements: list[dict[str, Any]] | None = None,
        replies: list[JobReply] | None = None,
    ) -> str:
        with artifacts.create() as plan:
            asks.write(plan, [pa.Table.from_pylist(requests, asks.SCHEMA)])
        answered = chunks.write(artifacts, pa.Table.from_pylist(answers, chunks.SCHEMA))
        judged = job_chunks.write(artifacts, pa.Table.from_pylist(judgements or [], job_chunks.JUDGEMENT))
        stage = StageRecords("argue", [(plan.sha256, 0)], [(1, answered)])
        with artifacts.create() as file:
            rows = journal.write(file, artifacts, NUMBERS, [stage], [judged], replies or [])
        assert rows == len(requests) + len(judgements or []) + sum(reply.kind != "verdict" for reply in replies or [])
        return file.sha256

    return make


def rows_of(artifacts: Artifacts, sha256: str) -> list[dict[str, Any]]:
    with artifacts.open(sha256) as file:
        return list(pq.read_table(file).to_pylist())


def test_rows_are_those_of_one_item_after_the_other_requests_before_what_was_said_of_them(
    artifacts: Artifacts, write: Callable[..., str]
) -> None:
    score = {"position": 0, "life": 1, "turn": 1, "index": 0, "kind": "score", "value": '{"score":1.0}'}
    resolve = JobReply(position=0, life=1, turn=2, kind="resolve", body={"text": "so"})
    verdict = JobReply(position=0, life=1, turn=1, kind="verdict", body={"passed": True})
    requests = [request(1, 0, "four/argue.1.0"), request(2, 1, "two#2/argue.1.0", life=2)]
    sha256 = write(requests, [answer(1, "yes"), answer(2, None)], [score], [resolve, verdict])
    first, second, judged, said = rows_of(artifacts, sha256)
    assert (first["number"], first["custom_id"], first["life"], first["ok"]) == (2, "two", 2, False)
    assert (first["error"], first["message"], first["text"]) == ("request_timeout", "too long", None)
    assert (second["number"], second["custom_id"], second["text"], second["seed"]) == (4, "four", "yes", 1)
    assert (second["input_tokens"], second["output_tokens"], second["seconds"]) == (3, 2, 0.5)
    assert (judged["kind"], judged["sample"], json.loads(judged["value"])) == ("score", 0, {"score": 1.0})
    assert (said["kind"], said["turn"], json.loads(said["value"])) == ("resolve", 2, {"text": "so"})


def test_an_answer_is_taken_only_for_an_equal_request_at_the_same_place(
    artifacts: Artifacts, write: Callable[..., str]
) -> None:
    earlier = Journal(artifacts, write([request(1, 0, "four/argue.1.0")], [answer(1, "yes")]))
    taken = earlier.answer(4, "argue", 1, 0, ASK)
    assert taken is not None
    assert (taken.ok, taken.text, taken.model, taken.seed, taken.output_tokens) == (True, "yes", "echo", 1, 2)
    for place in ((4, "argue", 1, 0, OTHER), (2, "argue", 1, 0, ASK), (4, "judge", 1, 0, ASK), (4, "argue", 2, 0, ASK)):
        assert earlier.answer(*place) is None


def test_the_last_attempt_at_a_request_counts_and_one_without_an_answer_is_none(
    artifacts: Artifacts, write: Callable[..., str]
) -> None:
    attempts = [request(1, 0, "four/argue.1.0"), request(2, 0, "four/argue.1.0~1", retry=1)]
    taken = Journal(artifacts, write(attempts, [answer(1, None), answer(2, "yes")])).answer(4, "argue", 1, 0, ASK)
    assert taken is not None and taken.text == "yes"
    open_ = Journal(artifacts, write([request(1, 0, "four/argue.1.0")], []))
    assert open_.answer(4, "argue", 1, 0, ASK) is None


def test_a_duplicate_has_the_body_of_the_request_whose_answer_it_shares(
    artifacts: Artifacts, write: Callable[..., str]
) -> None:
    requests = [request(1, 0, "four/argue.1.0"), request(2, 1, "two/argue.1.0", body="", same_as=1)]
    first, _ = rows_of(artifacts, write(requests, [answer(1, "yes"), answer(2, "yes")]))
    assert (first["number"], first["model"], first["seed"], first["text"]) == (2, "echo", 1, "yes")
