"""A stage of a job ends as any batch does, with an input file of the requests that the job has asked."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from sqlalchemy import update

from batchyard.errors import ConflictError
from results.filter import Filter
from results.opening import open_rows
from store import batches, files, segments
from store.formats.results import ResultRow
from store.jobs import stages
from store.records import Batch
from tasks.context import AppContext
from tasks.finishing import finalize, manifest
from tasks.intake import retry_input
from tests.support.jobs import ask, open_stage, seal, start_job
from tests.support.messages import SentMessages
from tests.support.planned import answers, append, finish_segment, reload, started
from tests.support.stacks import a_chat

pytestmark = pytest.mark.usefixtures("sent")

HERE = "here/1/task"


@pytest.fixture
def stage(context: AppContext, project: str) -> Batch:
    """The open batch of a job's stage, without segments."""
    with context.database.write() as session:
        return open_stage(session, start_job(session, project))


def finish(context: AppContext, batch: Batch) -> Batch:
    finalize.start_ready(context)
    assert finalize.merge(context, batch.id, HERE)
    finalize.end(context, batch.id, HERE)
    return reload(context.database, batch)


def lines_of(context: AppContext, batch: Batch, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    with context.database.read() as session:
        content = context.artifacts.read(files.get(session, batch.project_id, file_id).sha256)
    return [json.loads(line) for line in content.splitlines()]


def listed(context: AppContext, batch: Batch) -> list[ResultRow]:
    with open_rows(context, batch) as rows:
        return [entry.row for entry in rows.page(Filter(), 10).entries]


def test_a_stage_ends_with_the_requests_of_all_its_segments_and_their_answers(
    context: AppContext, stage: Batch, sent: SentMessages
) -> None:
    ask(context, stage, {2: "two", 1: "one", 3: "two"}, same_as={3: 2})
    finish_segment(context, stage, answers([1, 2, 3]))
    finalize.start_ready(context)
    assert sent.of("finish") == []  # it is open
    ask(context, stage, {5: "five", 4: "four"})
    seal(context, stage)
    finish_segment(context, stage, answers([4, 5], failed={5: "bad"}), number=1)
    ended = finish(context, stage)
    assert (ended.status, ended.total, ended.completed, ended.failed) == ("completed", 5, 4, 1)
    texts = {1: "one", 2: "two", 3: "two", 4: "four", 5: "five"}
    assert lines_of(context, ended, ended.input_file_id) == [a_chat(f"r{line}", text) for line, text in texts.items()]
    assert [line["custom_id"] for line in lines_of(context, ended, ended.output_file_id)] == ["r1", "r2", "r3", "r4"]
    assert [line["custom_id"] for line in lines_of(context, ended, ended.error_file_id)] == ["r5"]


def test_an_ended_stages_requests_stand_beside_their_answers(context: AppContext, stage: Batch) -> None:
    ask(context, stage, {1: "one", 2: "two"})
    seal(context, stage)
    finish_segment(context, stage, answers([2, 1]))
    ended = finish(context, stage)
    rows = listed(context, ended)
    assert [(row.line, row.body["messages"][0]["content"], row.text) for row in rows] == [
        (1, "one", "to r1"),
        (2, "two", "to r2"),
    ]


def test_a_running_stages_answers_stand_beside_their_requests(context: AppContext, stage: Batch) -> None:
    ask(context, stage, {1: "one", 2: "two", 3: "two"}, same_as={3: 2})
    ask(context, stage, {4: "four"})
    append(context, started(context.database, stage), answers([3, 1]))
    append(context, started(context.database, stage, 1), answers([4]))
    rows = listed(context, reload(context.database, stage))
    shown = [(row.line, row.body["messages"][0]["content"], row.text) for row in rows]
    assert shown == [(3, "two", "to r3"), (1, "one", "to r1"), (4, "four", "to r4"), (2, "two", None)]


def test_a_stage_that_asked_nothing_completes_with_empty_input(context: AppContext, stage: Batch) -> None:
    seal(context, stage)
    ended = finish(context, stage)
    assert (ended.status, ended.total, ended.output_file_id, ended.error_file_id) == ("completed", 0, None, None)
    assert lines_of(context, ended, ended.input_file_id) == []
    assert listed(context, ended) == []


@pytest.mark.parametrize(("end", "code"), [("expired", "batch_expired"), ("cancelled", "batch_cancelled")])
def test_what_an_ended_job_never_ran_gets_an_error_line(context: AppContext, stage: Batch, end: str, code: str) -> None:
    ask(context, stage, {1: "one", 2: "two"})
    segment = started(context.database, stage)
    append(context, segment, answers([1]))
    with context.database.write() as session:
        if end == "expired":
            session.execute(update(Batch).values(expires_at=int(time.time()) - 1))
            assert batches.expire(session) == [stage.id]
        else:
            stages.cancel_batches(session, stage.job_id or "")
        segments.end(session, segment, done=False, engine=None)
    ended = finish(context, stage)
    assert (ended.status, ended.completed, getattr(ended, end)) == (end, 1, 1)
    assert [line["error"]["code"] for line in lines_of(context, ended, ended.error_file_id)] == [code]
    assert len(lines_of(context, ended, ended.input_file_id)) == 2


def test_merging_a_stage_twice_makes_one_input_file(context: AppContext, stage: Batch) -> None:
    ask(context, stage, {1: "one"})
    seal(context, stage)
    finish_segment(context, stage, answers([1]))
    finalize.start_ready(context)
    inputs = []
    for _ in range(2):
        assert finalize.merge(context, stage.id, HERE)
        inputs.append(reload(context.database, stage).input_file_id)
    assert inputs[0] == inputs[1] != ""


def test_a_stages_manifest_names_its_input_and_no_other_file_as_input(context: AppContext, stage: Batch) -> None:
    ask(context, stage, {1: "one"})
    seal(context, stage)
    finish_segment(context, stage, answers([1]))
    ended = finish(context, stage)
    with context.database.read() as session:
        document = json.loads(manifest.build(session, ended, "completed"))
    assert document["input"]["sha256"] == ended.input_sha256
    assert document["input"]["bytes"] > 0
    assert [output["name"] for output in document["outputs"]] == ["output.jsonl"]


def test_a_stage_is_not_retried_but_its_job(context: AppContext, stage: Batch) -> None:
    ask(context, stage, {1: "one"})
    seal(context, stage)
    finish_segment(context, stage, answers([1], failed={1: "bad"}))
    ended = finish(context, stage)
    with pytest.raises(ConflictError, match=f"stage 'argue' of job '{stage.job_id}'; retry the job"):
        retry_input.write(context, ended)
