"""All rows of one moment, of every table there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Insert, Table, func, select, text

from batchyard.errors import ConfigurationError
from store import keys
from store.backup import rows
from store.backup.folder import BackupManifest
from store.database import Database
from store.records import Base, Project
from tests.store.backup.conftest import contents_of, fill
from tests.support.webapps import on_sqlite

BackUp = Callable[..., BackupManifest]


def test_every_table_of_the_schema_is_in_the_backup_with_all_its_rows(
    database: Database, back_up: BackUp, folder: Path
) -> None:
    fill(database)
    manifest = back_up()
    assert manifest.rows == dict.fromkeys(Base.metadata.tables, 3)
    copy = Database(f"sqlite:///{folder / 'batchyard.db'}")
    assert contents_of(copy) == contents_of(database)
    copy.close()


def test_what_is_written_meanwhile_is_in_no_snapshot(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's copy is one step; PostgreSQL's tables are read one after the other."""
    database, insertion = Database(postgresql_url), rows.insert
    fill(database)

    def write(table: Table) -> Insert:
        if table.name == "durations":  # the first table, whose rows have been read
            with database.write() as session:
                keys.create(session, "meanwhile")
        return insertion(table)

    assert Base.metadata.sorted_tables[0].name == "durations"
    monkeypatch.setattr(rows, "insert", write)
    rows.snapshot(database, tmp_path / "copy.db")
    copy = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    for source, number in ((database, 4), (copy, 3)):
        with source.read() as session:
            assert session.scalar(select(func.count()).select_from(Project)) == number
        source.close()


@on_sqlite
def test_a_database_of_another_schema_is_not_backed_up(database: Database, back_up: BackUp) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0028'"))
    with pytest.raises(ConfigurationError, match=r"has the schema 0028.*run `batchyard migrate` first"):
        back_up()


def test_a_database_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.db is not there; name the data folder"):
        rows.snapshot(Database(f"sqlite:///{tmp_path}/nothing.db"), tmp_path / "copy.db")
    assert not (tmp_path / "nothing.db").exists()
