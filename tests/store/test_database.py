"""The schema is Alembic's, and a database of another version is refused."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select, text, update

from batchyard.errors import ConfigurationError, UnavailableError
from store import database as databases
from store import files, keys, leases
from store.batches import BATCHES
from store.database import WAIT_SECONDS, Database
from store.records import Base, Project, Segment
from tests.support import released
from tests.support.rows import until


def test_the_migrations_make_the_records(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.upgrade()
    with database.write() as session:
        context = MigrationContext.configure(session.connection())
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_upgrading_twice_changes_nothing(database: Database, project: str) -> None:
    database.upgrade()
    with database.read() as session:
        assert session.get(Project, project) is not None


def test_a_database_of_the_first_schema_is_upgraded_with_all_that_is_in_it(
    empty_database_url: str, tmp_path: Path
) -> None:
    released.write(empty_database_url, tmp_path)
    database = Database(empty_database_url)
    database.upgrade()
    with database.write() as session:
        assert compare_metadata(MigrationContext.configure(session.connection()), Base.metadata) == []
        admin = keys.authenticate(session, released.KEY)
        assert admin is not None and admin.admin
        ended, running = (BATCHES.get(session, admin.project_id, id_) for id_ in (released.ENDED, released.RUNNING))
        assert (ended.status, ended.completed, running.status, running.completed) == ("completed", 4, "in_progress", 6)
        output = files.get(session, admin.project_id, ended.output_file_id or "")
        assert (output.bytes, output.sha256[:8]) == (1848, "a017b0a5")
        assert ended.timeline is not None and ended.timeline[-1][1] == 4
        (segment,) = session.scalars(select(Segment).where(Segment.batch_id == running.id))
        assert (segment.state, segment.answered, segment.requests) == ("running", 6, 60)
        assert leases.holders(session) == {segment.holder}
    database.close()


@pytest.mark.parametrize("version", ["9999", "0011"])
def test_a_database_of_an_unknown_version_is_refused_and_stays_as_it_is(
    database: Database, project: str, version: str
) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    with pytest.raises(ConfigurationError, match=r"newer version of Batchyard, or .* too old.*upgrade Batchyard"):
        database.upgrade()
    with database.read() as session:
        assert session.get(Project, project) is not None


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/batchyard\.db"):
        Database(f"sqlite:///{tmp_path}/file/batchyard.db").upgrade()


def test_an_unusable_url_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL"):
        Database("nonsense")


def test_concurrent_writers_wait_for_each_other(database: Database, project: str) -> None:
    def add(_: int) -> None:
        with database.write(serial=True) as session:
            seconds = session.get_one(Project, project).created_at
            session.execute(update(Project).values(created_at=seconds + 1))

    with database.write() as session:
        session.execute(update(Project).values(created_at=0))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    with database.read() as session:
        assert session.get_one(Project, project).created_at == 40


def test_a_postgresql_that_refuses_connections_is_unavailable() -> None:
    database = Database("postgresql+psycopg://somebody:secret@127.0.0.1:1/nothing")
    with pytest.raises(
        UnavailableError, match=r"database postgresql\+psycopg://somebody:\*\*\*@127\.0\.0\.1:1/nothing"
    ):
        database.ping()


@pytest.mark.long
def test_a_postgresql_that_never_answers_is_unavailable_within_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert databases._POSTGRESQL["connect_timeout"] < WAIT_SECONDS
    monkeypatch.setitem(databases._POSTGRESQL, "connect_timeout", 2)  # the least that there is
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = Database(f"postgresql+psycopg://somebody@127.0.0.1:{silent.getsockname()[1]}/nothing")
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            database.ping()
        assert time.monotonic() - began < 4 * WAIT_SECONDS


def test_a_connection_that_the_server_ends_is_unavailable_and_the_next_transaction_works(postgresql_url: str) -> None:
    database = Database(postgresql_url)
    with pytest.raises(UnavailableError, match="terminat"), database.write() as session:
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with database.write() as session:
        session.execute(update(Project).values(created_at=1))
    database.close()


def test_a_statement_that_hangs_is_unavailable_within_the_time_limit(postgresql_url: str) -> None:
    database = Database(postgresql_url, wait_seconds=1.5)
    began = time.monotonic()
    with pytest.raises(UnavailableError), database.read() as session:
        session.execute(text("SELECT pg_sleep(30)"))
    assert time.monotonic() - began < 25

    def answers() -> bool:
        try:
            database.ping()
        except UnavailableError:  # a busy server may take longer than this limit
            return False
        return True

    until(answers)
    database.close()


# In `make test`, test_pooler.py shows that connections have the limit by which PostgreSQL does this. Here it is as long
# as a busy server may take for the first statements.
@pytest.mark.exhaustive
def test_locks_of_a_client_that_is_cut_off_are_free_soon(postgresql_url: str) -> None:
    silent, other = Database(postgresql_url, wait_seconds=5), Database(postgresql_url, wait_seconds=60)
    with other.write() as session:
        keys.create(session, "default")
    with pytest.raises(UnavailableError), silent.write() as session:
        session.execute(update(Project).values(created_at=1))
        with other.write() as waiting:
            waiting.execute(update(Project).values(created_at=2))
    with other.read() as session:
        assert session.scalar(select(Project.created_at)) == 2
    silent.close()
    other.close()


def test_a_statement_that_nobody_waits_for_any_more_ends(postgresql_url: str) -> None:
    database, observer = Database(postgresql_url, wait_seconds=0.5), Database(postgresql_url)
    with pytest.raises(UnavailableError), database.read() as session:
        session.execute(text("SELECT pg_sleep(30)"))
    running = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(30)' AND state = 'active'")

    def has_ended() -> bool:
        with observer.read() as session:
            return not session.scalar(running)

    until(has_ended, 8)
    database.close()
    observer.close()


def test_a_damaged_file_is_named_with_the_remedy(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        session.execute(text("CREATE TABLE filler AS SELECT hex(randomblob(4000)) AS content FROM projects"))
        session.execute(text("INSERT INTO filler VALUES (hex(randomblob(40000)))"))
    database.truncate_log()
    database.close()
    file = tmp_path / "batchyard.db"
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    damaged = Database(sqlite_url)
    remedy = r"database sqlite:///.* is damaged: .*malformed; restore a backup"
    with pytest.raises(UnavailableError, match=remedy), damaged.read() as session:
        session.execute(text("SELECT * FROM filler")).all()
    damaged.close()


def test_a_writer_that_waits_too_long_for_another_is_unavailable(sqlite_url: str) -> None:
    database = Database(sqlite_url, wait_seconds=0.3)
    with ThreadPoolExecutor(1) as pool, database.write() as session:
        session.execute(update(Project).values(created_at=1))

        def write() -> None:
            with database.write() as other:
                other.execute(update(Project).values(created_at=2))

        with pytest.raises(UnavailableError, match=r"batchyard\.db"):
            pool.submit(write).result()
    database.close()
