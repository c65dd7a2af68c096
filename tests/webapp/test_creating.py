"""A batch that is committed is never answered with an error, and its message is always sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.orm import Session

from store import batches, speeds
from store.records import Project
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.scheduling import deadlines
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, context_in, upload

CREATE = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
def context(database_url: str, broker: str, tmp_path: Path) -> Iterator[AppContext]:
    """A context whose model was measured, so that a new batch has a forecast."""
    context = context_in(tmp_path, database_url=database_url, redis_url=broker)
    context.redis.flushall()
    measurement = Measurement(seconds=60.0, requests=60, bytes=6000, tokens=600, squares=0.0, in_flight=256)
    with context.database.write() as session:
        speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measurement)
    yield context
    context.redis.flushall()  # other tests have the same broker


def in_database(context: AppContext) -> list[str]:
    """Return the ids of all batches."""
    with context.database.read() as session:
        return [batch.id for batch in batches.page(session, session.query(Project.id).scalar(), after=None, limit=9)[0]]


def test_a_batch_whose_forecast_fails_is_answered_without_one_and_sent(
    context: AppContext, validate_messages: list[str]
) -> None:
    client = client_of(context)
    file_id = upload(client, json.dumps(a_chat("a", "b")).encode()).get_json()["id"]
    context.redis.set(deadlines.BACKLOG, "not JSON")
    answer = client.post("/v1/batches", json={"input_file_id": file_id, **CREATE}, buffered=True)
    started = client.post("/start", json={"model": "echo", "prompts": ["a"]}, buffered=True)
    assert (answer.status_code, started.status_code) == (200, 202)
    assert answer.get_json()["batchyard"]["eta_seconds"] is None
    assert validate_messages == sorted(in_database(context)) == [answer.get_json()["id"], started.get_json()["job_id"]]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_batch_that_is_committed_is_answered_and_sent_though_the_database_is_away(
    context: AppContext, postgresql: str, validate_messages: list[str]
) -> None:
    client = client_of(context)
    file_id = upload(client, json.dumps(a_chat("a", "b")).encode()).get_json()["id"]
    name = make_url(context.settings.database).database
    server = create_engine(postgresql, isolation_level="AUTOCOMMIT")

    def allow(*, connections: bool) -> None:
        with server.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {connections}"))
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
            )

    def take_away(_: Session) -> None:
        allow(connections=False)

    event.listen(Session, "after_commit", take_away)
    try:
        answer = client.post("/v1/batches", json={"input_file_id": file_id, **CREATE}, buffered=True)
    finally:
        event.remove(Session, "after_commit", take_away)
        allow(connections=True)
        server.dispose()
    assert (answer.status_code, answer.get_json()["status"]) == (200, "validating")
    assert answer.get_json()["batchyard"]["eta_seconds"] > 0
    assert validate_messages == in_database(context) == [answer.get_json()["id"]]
