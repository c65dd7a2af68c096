"""A database that an earlier version has left, with rows in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Integer, MetaData, Table, create_engine, event, insert, make_url, select

from tests.support.stacks import ROOT

FIRST_SCHEMA = ROOT / "tests/store/backup/first_schema.sql"
REVISION = "0032"
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
    source, target = create_engine(f"sqlite:///{folder / 'released.db'}"), create_engine(url)
    tables = MetaData()
    event.listen(tables, "column_reflect", _generalize)
    with source.begin() as rows, target.begin() as connection:
        tables.reflect(rows)
        tables.create_all(connection)
        for table in tables.sorted_tables:
            values = [dict(row) for row in rows.execute(select(table)).mappings()]
            if values:
                connection.execute(insert(table), values)
    source.dispose()
    target.dispose()


def _generalize(_inspector: Any, _table: Table, column: Any) -> None:
    """Give a column of SQLite the type that it has in PostgreSQL, where all whole numbers are long."""
    type_ = column["type"].as_generic()
    column["type"] = BigInteger() if isinstance(type_, Integer) else type_
    column["default"] = None
