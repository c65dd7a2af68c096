"""A session of the web pages ends with its time, with its key, and on request."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from store import sessions
from store.database import Database
from store.records import ApiKey, WebSession
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


@pytest.fixture
def token(database: Database, project: str) -> str:
    """The token of a session of the project's only key."""
    with database.write() as session:
        return sessions.create(session, session.scalars(select(ApiKey.id)).one())


def test_a_token_opens_the_project_of_its_key_and_is_not_stored(database: Database, project: str, token: str) -> None:
    with database.read() as session:
        visitor = sessions.find(session, token)
        assert visitor is not None and (visitor.project, visitor.caller.project_id) == ("default", project)
        assert sessions.find(session, token[:-1]) is None
        assert token not in session.scalars(select(WebSession.token_sha256)).one()


def test_a_session_that_was_ended_opens_nothing(database: Database, token: str) -> None:
    with database.write() as session:
        for _ in range(2):
            sessions.end(session, token)
        assert sessions.find(session, token) is None


def test_a_session_ends_with_its_key(database: Database, token: str) -> None:
    with database.write() as session:
        session.execute(update(ApiKey).values(revoked_at=1))
        assert sessions.find(session, token) is None


def test_a_session_that_is_over_opens_nothing_and_is_deleted_by_the_next(database: Database, token: str) -> None:
    with database.write() as session:
        session.execute(update(WebSession).values(expires_at=1))
        assert sessions.find(session, token) is None
        sessions.create(session, session.scalars(select(ApiKey.id)).one())
        assert len(session.scalars(select(WebSession)).all()) == 1
