"""Previews show requests beside their answers and count what went wrong, a piece at a time."""

from __future__ import annotations

import pytest

from batchyard.errors import NotFoundError, RequestError
from store import files
from store.records import Batch
from tasks import messages
from tasks.context import AppContext
from tasks.finishing import finalize, result_previews
from tasks.finishing.result_previews import Cursor
from tests.support.planned import answers, append, finish_segment, plan_batch, reload, started

HERE = "here/1/task"


@pytest.fixture
def ended(context: AppContext, project: str, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A batch of five requests that has ended; the second and the fourth failed."""
    batch = plan_batch(context, project, ["one", "two", "three", "four", "five"])
    seconds = [5.5, None, 1.5, 2.5, 4.5]
    table = answers([5, 3, 1, 2, 4], failed={2: "too_long", 4: "too_long"}, seconds=seconds)
    finish_segment(context, batch, table)
    monkeypatch.setattr(messages, "finish", lambda _batch_id, _steps: None)
    finalize.start_ready(context)
    assert finalize.merge(context, batch.id, HERE)
    finalize.end(context, batch.id, HERE)
    return reload(context.database, batch)


@pytest.fixture
def running(context: AppContext, project: str) -> Batch:
    """A batch of five requests of which three were answered, and the second failed."""
    batch = plan_batch(context, project, ["one", "two", "three", "four", "five"])
    lease = started(context.database, batch)
    append(context, lease, answers([3]))
    append(context, lease, answers([2, 1], failed={2: "too_long"}, seconds=[None, 0.25]))
    return batch


def test_an_ended_batch_is_read_page_by_page_in_input_order(context: AppContext, ended: Batch) -> None:
    cursor: Cursor | None = Cursor()
    pages = []
    while cursor is not None:
        rows, cursor = result_previews.in_order(context, ended, cursor, 2)
        pages.append([(row.line, row.custom_id, row.text, row.seconds) for row in rows])
    assert pages == [
        [(1, "r1", "to r1", 1.5), (2, "r2", None, 2.5)],
        [(3, "r3", "to r3", None), (4, "r4", None, 4.5)],
        [(5, "r5", "to r5", 5.5)],
    ]


def test_a_cursor_that_was_made_up_is_refused(context: AppContext, ended: Batch) -> None:
    with pytest.raises(RequestError, match="no such place"):
        result_previews.in_order(context, ended, Cursor(1, 5, 3, 2), 2)


def test_without_its_input_an_ended_batch_has_no_preview(context: AppContext, ended: Batch) -> None:
    with context.database.write() as session:
        files.delete(session, ended.project_id, ended.input_file_id)
    with pytest.raises(NotFoundError):
        result_previews.in_order(context, ended, Cursor(), 2)


def test_a_running_batch_is_read_in_the_order_of_its_answers(context: AppContext, running: Batch) -> None:
    rows, following = result_previews.as_they_came(context, running, 0, 2)
    shown = [(row.custom_id, row.body["messages"][0]["content"], row.seconds) for row in rows]
    assert shown == [("r3", "three", 0.5), ("r2", "two", None)]
    assert following == 2
    rows, following = result_previews.as_they_came(context, running, 2, 2)
    assert [(row.custom_id, row.text, row.seconds) for row in rows] == [("r1", "to r1", 0.25)]
    assert following is None


def test_failures_are_counted_by_code_with_examples(context: AppContext, ended: Batch, running: Batch) -> None:
    problems = result_previews.of_running(context, running)
    assert [(group.code, group.count, group.examples[0].line) for group in problems.groups] == [("too_long", 1, 2)]
    with context.database.read() as session:
        errors = files.find(session, ended.project_id, ended.error_file_id or "")
    assert errors is not None
    problems = result_previews.of_file(context.artifacts, errors.sha256, ended.input_sha256)
    (group,) = problems.groups
    assert (problems.seen, group.code, group.count) == (2, "too_long", 2)
    assert [(example.line, example.custom_id, example.message) for example in group.examples] == [
        (2, "r2", "line 2 failed"),
        (4, "r4", "line 4 failed"),
    ]
