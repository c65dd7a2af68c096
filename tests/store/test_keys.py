"""Keys open one project each; their secrets are not kept, and a revoked one opens nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
from sqlalchemy import func, select, text, update

from batchyard.errors import NotFoundError, RequestError
from store import keys, sessions
from store.database import Database
from store.records import ApiKey, Project


def test_a_key_opens_its_own_project_and_is_not_kept(database: Database) -> None:
    with database.write() as session:
        first, second = keys.create(session, "one"), keys.create(session, "two", admin=True)
    with database.read() as session:
        one, two = keys.authenticate(session, first.key), keys.authenticate(session, second.key)
        assert one is not None and two is not None and one.project_id != two.project_id
        assert (one.admin, two.admin) == (False, True)
        assert (one.key_id, two.key_id) == (first.id, second.id)
        for wrong in ("", "by-", first.key[:-1], first.key + "0", second.key.replace("by-", "")):
            assert keys.authenticate(session, wrong) is None
        kept = " ".join(map(str, session.execute(text("SELECT * FROM api_keys")).all()))
    assert first.key.rpartition("-")[2] not in kept


@pytest.mark.usefixtures("frozen_time")
def test_a_revoked_key_opens_nothing_and_stays_revoked_since_the_first_time(database: Database) -> None:
    with database.write() as session:
        key = keys.create(session, "one")
        revoked = keys.revoke(session, key.id)
        assert revoked.revoked_at == pytest.approx(time.time(), abs=5)
        assert keys.authenticate(session, key.key) is None
    with database.write() as session:
        session.execute(update(ApiKey).values(revoked_at=1))
        assert keys.revoke(session, key.id).revoked_at == 1


def test_revoking_an_unknown_key_says_so(database: Database) -> None:
    with pytest.raises(NotFoundError, match="No API key found with id 'nope'"), database.write() as session:
        keys.revoke(session, "nope")


def test_keys_are_listed_newest_first_without_secrets(database: Database) -> None:
    with database.write() as session:
        created = [keys.create(session, name, admin=name == "one") for name in ("one", "two", "one", "two", "one")]
        keys.revoke(session, created[1].id)
    with database.read() as session:
        first, more = keys.page(session, limit=3)
        second, last = keys.page(session, limit=3, after=first[-1].id)
        assert (more, last) == (True, False)
        assert [key.id for key in [*first, *second]] == [key.id for key in created[::-1]]
        assert [key.id for key in keys.page(session, project="two")[0]] == [created[3].id, created[1].id]
        assert keys.page(session, project="three") == ([], False)
    listed = asdict(second[0])
    assert listed.pop("revoked_at") is not None
    unset = dict.fromkeys(("label", "expires_at", "last_used_at"))
    assert listed == unset | {
        "id": created[1].id,
        "project": "two",
        "admin": False,
        "created_at": created[1].created_at,
    }


def test_a_key_with_an_end_opens_nothing_after_it(database: Database) -> None:
    with database.write() as session:
        key = keys.create(session, "one", admin=True, label="for the demo", expires_after=60)
        token = sessions.create(session, key.id)
        assert keys.authenticate(session, key.key) is not None and keys.has_admin(session)
        assert sessions.find(session, token) is not None
        session.execute(update(ApiKey).values(expires_at=int(time.time())))
    with database.read() as session:
        assert keys.authenticate(session, key.key) is None and not keys.has_admin(session)
        assert sessions.find(session, token) is None
        assert keys.page(session)[0][0].name == "for the demo"


@pytest.mark.usefixtures("frozen_time")
def test_the_last_use_of_a_key_is_kept_and_written_seldom(database: Database) -> None:
    with database.write() as session:
        key = keys.create(session, "one")
        caller = keys.authenticate(session, key.key)
        assert caller is not None and caller.unnoted
        keys.note_use(session, key.id)
    with database.read() as session:
        caller = keys.authenticate(session, key.key)
        assert caller is not None and not caller.unnoted
        assert keys.get(session, key.id).last_used_at == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\0b", "\x7f", "\ud800"])
def test_a_name_that_no_project_may_have_is_refused(database: Database, name: str) -> None:
    with pytest.raises(RequestError, match="'project': a name has 1 to 128 characters"), database.write() as session:
        keys.create(session, name)


@pytest.mark.parametrize("name", ["x", "ä" * 128, "Güter 貨物 🚂", "می‌خواهم"])
def test_a_project_may_have_any_other_name(database: Database, name: str) -> None:
    with database.write() as session:
        keys.create(session, name)
        assert [key.project for key in keys.page(session, project=name)[0]] == [name]


def test_keys_made_at_once_for_a_new_project_make_it_once(database: Database) -> None:
    def create(_: int) -> str:
        with database.write() as session:
            return keys.create(session, "new").id

    with ThreadPoolExecutor(8) as pool:
        key_ids = list(pool.map(create, range(16)))
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(Project)) == 1
        assert {key.id for key in keys.page(session)[0]} == set(key_ids)
