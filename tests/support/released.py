"""A database that an earlier version has left, with rows in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, create_engine, insert, make_url, select

from tests.support.stacks import ROOT

FIRST_SCHEMA = ROOT / "tests/store/backup/first_schema.sql"
REVISION = "0020"
ENDED, RUNNING = "batch_06613b04977785307762ccaaa4c1ab7e", "batch_06613b055377917ae6452c98d6e2e9e4"
"""The batches in it: one has ended with 4 answers, one runs and has 6 of 60."""
KEY = "by-06613b03c64a526ea68a13f1171af579-d7bfbe35bb43b54d5dd856a53594fe68b0b4ac738238d5213112ca37e7c85958"
"""An admin key of the database."""


def write_file(file: Path) -> None:
    """Write the database as a SQLite file."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(FIRST_SCHEMA.read_text())


def write(url: str, folder: Path) -> None:
    """Write the database to an empty one of SQLite or PostgreSQL; `folder` is for what that needs."""
    if make_url(url).get_backend_name() == "sqlite":
        return write_file(Path(make_url(url).database or ""))
    write_file(folder / "released.db")
    config = Config()
    config.set_main_option("script_location", str(ROOT / "store/migrations"))
    source, target = create_engine(f"sqlite:///{folder / 'released.db'}"), create_engine(url)
    with source.begin() as rows, target.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, REVISION)
        tables, their_tables = MetaData(), MetaData()
        tables.reflect(rows)
        their_tables.reflect(connection)
        for table in tables.sorted_tables:
            values = [dict(row) for row in rows.execute(select(table)).mappings()]
            if values and table.name != "alembic_version":
                connection.execute(insert(their_tables.tables[table.name]), values)
    source.dispose()
    target.dispose()
