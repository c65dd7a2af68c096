"""Batches through the API: they are accepted while the broker is away, and listed by status."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from store import batches
from store.batches import BATCHES
from store.records import Batch, Event
from store.work.lifecycle import MESSAGE_SECONDS
from tasks import context as contexts
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in, upload
from webapp import application


def test_a_batch_is_accepted_while_the_broker_is_away_and_found_again(client: FlaskClient, context: AppContext) -> None:
    file_id = upload(client, b"{}").get_json()["id"]
    began = time.monotonic()
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = client.post("/v1/batches", json=body)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "validating")
    assert time.monotonic() - began < 30
    assert client.get(f"/v1/batches/{answer.get_json()['id']}").status_code == 200
    with context.database.write() as session:
        assert batches.claim_validatable(session, 60) == []
    later = time.time() + MESSAGE_SECONDS + 1
    with pytest.MonkeyPatch.context() as clock, context.database.write() as session:
        clock.setattr(time, "time", lambda: later)
        assert batches.claim_validatable(session, 60) == [answer.get_json()["id"]]


@pytest.mark.long
def test_a_broker_that_hangs_holds_no_request_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (application, contexts):
        monkeypatch.setattr(module, "REDIS_SECONDS", 0.3)  # of each wait for it
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        client = client_of(context_in(tmp_path))
        file_id = upload(client, b"{}").get_json()["id"]
        began = time.monotonic()
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        assert client.post("/v1/batches", json=body).status_code == 200
        assert time.monotonic() - began < 40


def test_batches_are_listed_by_status_and_another_word_is_refused(client: FlaskClient) -> None:
    file_id = upload(client, b"{}").get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    first, second = (client.post("/v1/batches", json=body).get_json()["id"] for _ in range(2))
    assert client.post(f"/v1/batches/{first}/cancel").status_code == 200

    def listed(query: str) -> list[str]:
        return [batch["id"] for batch in client.get(f"/v1/batches?{query}").get_json()["data"]]

    assert listed("status=validating") == [second]
    assert listed("status=cancelling") == [first]
    assert listed(f"status=cancelling&after={second}") == [first]
    assert listed("status=completed") == []
    refused = client.get("/v1/batches?status=running")
    assert (refused.status_code, refused.get_json()["error"]["param"]) == (400, "status")


def test_answers_with_flaws_are_counted_in_the_batch_and_in_its_event(client: FlaskClient, context: AppContext) -> None:
    file_id = upload(client, b"{}").get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = client.post("/v1/batches", json=body).get_json()["id"]
    with context.database.write() as session:
        batch = session.get_one(Batch, batch_id)
        batch.total, batch.completed, batch.cut_off, batch.empty, batch.invalid = 2000, 1997, 1994, 3, 5
        batch.status = "finalizing"
    with context.database.write() as session:
        assert BATCHES.transition(session, batch_id, "finalizing", "completed")
        (event,) = session.scalars(select(Event).where(Event.batch_id == batch_id, Event.type == "batch.completed"))
        counts = {"total": 2000, "completed": 1997, "failed": 0, "expired": 0, "cancelled": 0}
        assert event.data["counts"] == counts | {"cut_off": 1994, "empty": 3, "invalid": 5, "looped": 0}
    ours = client.get(f"/v1/batches/{batch_id}").get_json()["batchyard"]
    assert (ours["cut_off"], ours["empty"], ours["invalid"]) == (1994, 3, 5)
