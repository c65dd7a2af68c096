"""POST /v1/jobs/{id}/items/{number}: which replies are taken, and what the others are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from jobs import messages
from store.records import Project
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in
from tests.support.written_jobs import NUMBERS, Written

WAITS, STUCK, LIVE = NUMBERS[0], NUMBERS[1], NUMBERS[2]
VERDICT = {"verdict": {"gate": "house", "passed": False, "category": "style", "message": "Shorter."}}


@pytest.fixture
def context(database_url: str, tmp_path: Path) -> AppContext:
    return context_in(tmp_path, database_url=database_url, redis_url="redis://127.0.0.1:1/0")


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def job(context: AppContext, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> Written:
    """A job with an item that waits, one that is stuck, and live ones."""
    monkeypatch.setattr(messages, "finish", lambda *_: None)
    with context.database.read() as session:
        project = session.scalars(select(Project.id)).one()
    written = Written(context, project)
    written.end((0, "waiting_for_verdict"), gate="house", draft="So it is.")
    written.end((1, "stuck"), error={"code": "tie", "message": "Two against two."})
    written.update(stuck=1, waiting_for_verdict=1)
    return written


def reply(client: FlaskClient, job: Written, number: int, body: Any) -> Any:
    return client.post(f"/v1/jobs/{job.job.id}/items/{number}", json=body)


def test_each_kind_of_reply_is_answered_with_the_item_and_what_was_said_to_it(
    client: FlaskClient, job: Written
) -> None:
    waiting = client.get(f"/v1/jobs/{job.job.id}/items/{WAITS}").get_json()
    assert (waiting["state"], waiting["reason"], waiting["waits_for"]["draft"]) == (
        "waiting_for_verdict",
        "house",
        "So it is.",
    )
    assert (waiting["result"], waiting["turn"]) == (None, 2)
    answer = reply(client, job, WAITS, {"verdict": VERDICT["verdict"] | {"turn": waiting["turn"]}})
    assert answer.status_code == 200, answer.text
    (said,) = answer.get_json()["replies"]
    assert (said["life"], said["turn"], said["kind"]) == (1, 2, "verdict")
    assert said["body"] == VERDICT["verdict"] | {"by": None}
    resolved = reply(client, job, STUCK, {"text": "Mine.", "by": "Ann"}).get_json()
    assert (resolved["state"], resolved["error"]) == ("completed", None)
    assert resolved["result"] == {"text": "Mine.", "life": 1, "resolved_by": "Ann"}
    counts = client.get(f"/v1/jobs/{job.job.id}").get_json()["request_counts"]
    assert (counts["completed"], counts["stuck"]) == (1, 0)
    said = [(event["type"], event["data"]) for event in client.get("/v1/audit").get_json()["data"]]
    of_item = {"id": job.job.id, "number": WAITS}
    assert said[:2] == [
        ("item.resolved", {"id": job.job.id, "number": STUCK}),
        ("item.judged", {**of_item, "gate": VERDICT["verdict"]["gate"], "passed": VERDICT["verdict"]["passed"]}),
    ]


def test_an_item_is_put_back_once(client: FlaskClient, job: Written) -> None:
    answer = reply(client, job, STUCK, {"requeue": {"hint": "Count again."}})
    assert answer.get_json()["replies"][0]["body"] == {"hint": "Count again.", "state": "stuck"}
    refused = reply(client, job, STUCK, {"requeue": {}})
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (409, "already_replied")
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("number", "body", "status", "says"),
    [
        (WAITS, {}, 400, "send one of 'text', 'verdict' and 'requeue'"),
        (WAITS, {"text": "a", "requeue": {}}, 400, "send one of"),
        (STUCK, {"requeue": {}, "by": "Ann"}, 400, "'by' stands beside 'text'"),
        (WAITS, {"verdict": {"gate": "house"}}, 400, "verdict.passed"),
        (WAITS, {"verdict": {"gate": "house", "passed": "yes"}}, 400, "verdict.passed"),
        (STUCK, {"requeue": {"hnit": "a"}}, 400, "requeue.hnit"),
        (99, VERDICT, 404, "no item 99"),
        (STUCK, VERDICT, 409, f"Item {STUCK} is stuck: it waits for no verdict."),
        (WAITS, {"verdict": {"gate": "other", "passed": True}}, 409, "gate 'house', not of 'other'"),
        (WAITS, {"verdict": {"gate": "house", "turn": 1, "passed": True}}, 409, "waits in turn 2, not in turn 1"),
        (WAITS, {"text": "a"}, 409, "is waiting_for_verdict; only items that are stuck or failed can be resolved"),
        (LIVE, {"requeue": {}}, 409, "is live; only items that are stuck or failed can be put back"),
    ],
)
def test_a_reply_that_cannot_be_taken_is_told_why(
    client: FlaskClient, job: Written, number: int, body: Any, status: int, says: str
) -> None:
    answer = reply(client, job, number, body)
    assert answer.status_code == status, answer.text
    assert says in answer.get_json()["error"]["message"]
    items = [client.get(f"/v1/jobs/{job.job.id}/items/{place}").get_json() for place in (WAITS, STUCK)]
    assert [item["replies"] for item in items] == [[], []]


def test_another_project_sees_no_item(context: AppContext, job: Written) -> None:
    other = client_of(context, project="other")
    for number, body in ((WAITS, VERDICT), (STUCK, {"requeue": {}}), (STUCK, {"text": "a"})):
        assert reply(other, job, number, body).status_code == 404


def test_after_the_jobs_end_an_item_can_be_resolved_but_not_put_back(client: FlaskClient, job: Written) -> None:
    job.finished("completed")
    job.update(completed=5)
    refused = reply(client, job, STUCK, {"requeue": {}})
    assert refused.status_code == 409
    assert f"is completed; retry its items in a new job: POST /v1/jobs/{job.job.id}/retry" in refused.text
    assert reply(client, job, STUCK, {"text": "Mine."}).get_json()["state"] == "completed"
    assert client.get(f"/v1/jobs/{job.job.id}").get_json()["batchyard"]["amendments"] == 1
