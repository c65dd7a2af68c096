"""/selected: what is done to several batches and jobs at once, after a question, whatever becomes of each."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from store import keys
from store.records import Batch, Job
from tasks.context import AppContext
from tests.support.jobs import create_job, start_job
from tests.support.planned import plan_batch
from tests.support.webapps import project_of
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app
from webapp.pages import selection

Make = Callable[..., Batch]


@pytest.fixture
def make(client: FlaskClient, context: AppContext) -> Make:
    """Creates a batch in the client's project, with these values in its record."""

    def make_(**values: object) -> Batch:
        batch = plan_batch(context, project_of(context), ["one", "two"])
        with context.database.write() as session:
            session.execute(update(Batch).where(Batch.id == batch.id).values(**values or {"sla": "on_track"}))
            return session.get_one(Batch, batch.id)

    return make_


def statuses(context: AppContext, *ids: str) -> list[str]:
    with context.database.read() as session:
        return [session.get_one(Batch, batch_id).status for batch_id in ids]


def offered(page: str) -> list[str]:
    """The ids that a page would act on."""
    return re.findall(r'type="hidden" name="id" value="([^"]+)"', page)


def test_several_are_cancelled_after_a_question_and_what_cannot_be_is_said(
    client: FlaskClient, context: AppContext, make: Make
) -> None:
    running, ended = make(), make(status="completed", completed_at=2_000_000_000)
    with context.database.write() as session:
        job = start_job(session, running.project_id)
    ids = [running.id, ended.id, job.id]
    page = client.get("/selected", query_string={"action": "cancel", "id": ids}).text
    assert "Cancel 2 of 3 selected?" in page and "is completed already" in page
    form = {"csrf": csrf_of(client), "action": "cancel", "once": "1"}
    with context.database.read() as session:
        assert session.get_one(Batch, running.id).status == "in_progress"
    assert client.post("/selected", data=form | {"id": [running.id, job.id]}).status_code == 303
    with context.database.read() as session:
        assert session.get_one(Batch, running.id).status == "cancelling"
    again = client.post("/selected", data=form | {"id": [ended.id]})
    assert (again.status_code, "Cannot cancel a batch with status" in again.text) == (409, True)
    nothing = client.get("/selected?action=cancel")
    assert (nothing.status_code, "Nothing is selected" in nothing.text) == (400, True)
    assert client.get(f"/selected?action=drop&id={running.id}").status_code == 400


def test_several_are_paused_and_resumed_after_a_question(client: FlaskClient, context: AppContext, make: Make) -> None:
    batch, ended = make(), make(status="completed", completed_at=2_000_000_000)
    with context.database.write() as session:
        job = start_job(session, batch.project_id)
    ids, csrf = [batch.id, ended.id, job.id], csrf_of(client)

    def paused() -> list[bool]:
        with context.database.read() as session:
            return [
                session.get_one(Batch, batch.id).paused_at is not None,
                session.get_one(Job, job.id).paused_at is not None,
            ]

    page = client.get("/selected", query_string={"action": "pause", "id": ids}).text
    assert "Pause 2 of 3 selected?" in page and "is completed already" in page and paused() == [False, False]
    form = {"csrf": csrf, "once": "1", "id": [batch.id, job.id]}
    assert client.post("/selected", data=form | {"action": "pause"}).status_code == 303
    assert paused() == [True, True]
    assert "is paused already" in client.get("/selected", query_string={"action": "pause", "id": ids}).text
    assert "Resume 2 of 3 selected?" in client.get("/selected", query_string={"action": "resume", "id": ids}).text
    assert client.post("/selected", data=form | {"action": "resume"}).status_code == 303
    assert paused() == [False, False]


def test_what_is_not_there_is_said_and_stops_nothing_else(client: FlaskClient, context: AppContext, make: Make) -> None:
    first, last = make(), make()
    ids = [first.id, "batch_gone", "job_gone", last.id]
    page = client.get("/selected", query_string={"action": "cancel", "id": ids}).text
    assert offered(page) == [first.id, last.id] and "Cancel 2 of 4 selected?" in page
    assert "batch_gone" in page and "job_gone" in page
    answer = client.post("/selected", data={"csrf": csrf_of(client), "action": "cancel", "once": "1", "id": ids})
    assert (answer.status_code, answer.text.count("found with id")) == (409, 2)
    assert statuses(context, first.id, last.id) == ["cancelling", "cancelling"]


def test_another_projects_work_is_not_there(client: FlaskClient, context: AppContext, make: Make) -> None:
    batch = make(name="secret <plan>")
    with context.database.write() as session:
        job = start_job(session, batch.project_id, name="secret plan")
        key = keys.create(session, "other").key
    theirs = signed_in(create_app(context).test_client(), key)
    ids = [batch.id, job.id]
    for action in ("cancel", "pause", "resume", "retry"):
        page = theirs.get("/selected", query_string={"action": action, "id": ids}).text
        assert offered(page) == [] and "secret" not in page
        answer = theirs.post("/selected", data={"csrf": csrf_of(theirs), "action": action, "once": "1", "id": ids})
        assert answer.status_code == 409 and "secret" not in answer.text
    assert statuses(context, batch.id) == ["in_progress"]
    with context.database.read() as session:
        assert session.get_one(Job, job.id).status == "in_progress"
        assert session.query(Batch).count() == 1 and session.query(Job).count() == 1


def test_what_is_selected_twice_is_one_and_more_than_a_page_are_not_taken(client: FlaskClient, make: Make) -> None:
    batch = make()
    page = client.get("/selected", query_string={"action": "pause", "id": [batch.id] * 3}).text
    assert offered(page) == [batch.id] and "Pause 1 of 1 selected?" in page
    many = [batch.id, *(f"batch_{number}" for number in range(2 * selection.MOST))]
    assert (
        f"of {selection.MOST} selected?" in client.get("/selected", query_string={"action": "pause", "id": many}).text
    )


@pytest.mark.parametrize("action", ["cancel", "retry", "pause", "resume"])
def test_what_is_offered_can_be_done_and_what_is_refused_stays_as_it_is(
    client: FlaskClient, context: AppContext, make: Make, action: str
) -> None:
    paused = {"paused_at": 1, "paused_by": "ada"}
    some = [make(status=status) for status in ("validating", "in_progress", "finalizing", "cancelling", "completed")]
    some += [make(status="failed"), make(status="in_progress", **paused)]
    for batch in some:
        before = statuses(context, batch.id)
        page = client.get("/selected", query_string={"action": action, "id": batch.id}).text
        form = {"csrf": csrf_of(client), "action": action, "once": "1", "id": batch.id}
        answer = client.post("/selected", data=form)
        if offered(page):
            assert answer.status_code == 303, (batch.status, answer.text)
        else:
            assert statuses(context, batch.id) == before
    with context.database.read() as session:
        assert session.query(Batch).count() == len(some)


def test_a_job_that_waits_can_be_cancelled_and_not_retried(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        job = create_job(session, project_of(context))
    asked = {action: client.get(f"/selected?action={action}&id={job.id}").text for action in ("cancel", "retry")}
    assert offered(asked["cancel"]) == [job.id]
    assert offered(asked["retry"]) == [] and "has not ended" in asked["retry"]
