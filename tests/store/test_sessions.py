"""A session of the web pages ends with its time, with its key, and on request. Users without keys have records."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from batchyard.errors import PermissionDeniedError
from store import keys, sessions
from store.database import Database
from store.deletion import retention
from store.records import ApiKey, WebSession
from store.sessions import User
from tests.support.webapps import on_sqlite


@pytest.fixture
def token(database: Database, project: str) -> str:
    """The token of a session of the project's only key."""
    with database.write() as session:
        return sessions.create(session, session.scalars(select(ApiKey.id)).one())


@on_sqlite
def test_a_token_opens_the_project_of_its_key_and_is_not_stored(database: Database, project: str, token: str) -> None:
    with database.read() as session:
        visitor = sessions.find(session, token)
        assert visitor is not None and (visitor.project, visitor.caller.project_id) == ("default", project)
        assert sessions.find(session, token[:-1]) is None
        assert token not in session.scalars(select(WebSession.token_sha256)).one()


@on_sqlite
def test_a_session_that_was_ended_opens_nothing(database: Database, token: str) -> None:
    with database.write() as session:
        for _ in range(2):
            sessions.end(session, token)
        assert sessions.find(session, token) is None


@on_sqlite
def test_a_session_ends_with_its_key(database: Database, token: str) -> None:
    with database.write() as session:
        session.execute(update(ApiKey).values(revoked_at=1))
        assert sessions.find(session, token) is None


@on_sqlite
def test_a_session_that_is_over_opens_nothing_and_is_deleted_by_the_next(database: Database, token: str) -> None:
    with database.write() as session:
        session.execute(update(WebSession).values(expires_at=1))
        assert sessions.find(session, token) is None
        sessions.create(session, session.scalars(select(ApiKey.id)).one())
        assert len(session.scalars(select(WebSession)).all()) == 1


ADA = User("https://id.example", "7", "ada@example.com")


def test_a_user_has_one_record_in_each_project_however_many_requests_are_the_first(database: Database) -> None:
    def enter(project: str) -> sessions.Visitor:
        with database.write() as session:
            return sessions.enter(session, ADA, project, admin=False)

    with ThreadPoolExecutor(6) as pool:
        visitors = set(pool.map(enter, ["search", "ads"] * 3))
    assert {visitor.project for visitor in visitors} == {"search", "ads"} and len(visitors) == 2
    with database.read() as session:
        current = sessions.find_user(session, ADA, "search", admin=False)
        assert current in visitors and current is not None and current.caller.name == ADA.name
        assert sessions.find_user(session, User("https://other.example", "7", ADA.name), "search", admin=False) is None
        assert sessions.find_user(session, ADA, "search", admin=True) is None, "their groups have changed"
    with database.write() as session:
        administrator = sessions.enter(session, ADA, "search", admin=True).caller
        token = sessions.create(session, administrator.key_id)
    with database.read() as session:
        visitor = sessions.find(session, token)
        assert visitor is not None and visitor.caller.admin and visitor.caller.key_id == current.caller.key_id


def test_no_secret_opens_a_users_record_and_a_revoked_one_stays_revoked(database: Database) -> None:
    with database.write() as session:
        key_id = sessions.enter(session, ADA, "search", admin=True).caller.key_id
        for secret in ("", "0" * 64, keys.NO_SECRET):
            assert keys.authenticate(session, f"by-{key_id}-{secret}") is None
        assert not keys.has_admin(session), "a deployment begins with a key for its administrator all the same"
        keys.revoke(session, key_id)
        session.execute(update(ApiKey).values(revoked_at=1))
    for old in retention.others(now=2**31, before=2**31):
        with database.write() as session:
            retention.purge(session, old, retention.find(session, old))
    with database.write() as session:
        for refused in (sessions.find_user, sessions.enter):
            with pytest.raises(PermissionDeniedError, match="has revoked your access to project 'search'"):
                refused(session, ADA, "search", admin=True)
