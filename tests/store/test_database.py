"""The schema is Alembic's, and a database of a newer version is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text, update

from batchyard.errors import ConfigurationError
from store.database import Database
from store.records import Base, Project


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


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(database: Database, project: str) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match=r"newer version of Batchyard.*upgrade Batchyard"):
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
