"""All rows of a database, from one moment: to a SQLite file, and from one to another database."""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, insert, inspect, literal, select
from sqlalchemy import table as named_table

from batchyard.errors import ConfigurationError, UnavailableError
from batchyard.settings import sqlite_url
from store.database import Database, revisions
from store.records import Base

ROWS_AT_ONCE = 1000


def snapshot(source: Database, file: Path) -> str:
    """Copy all rows to a new SQLite file. Return its schema's revision. Raises ConfigurationError, UnavailableError."""
    if source.is_missing:  # opening it would make it
        raise ConfigurationError(f"database {source.url.database} is not there; name the data folder with --data")
    with source.snapshot() as connection:
        revision = _current_revision(source, connection)
        if source.sqlite:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            try:
                with closing(sqlite3.connect(file)) as copied:
                    driver.backup(copied)  # in one step, during which others may write
            except sqlite3.Error as error:
                message = f"{file} cannot be written: {error}; make room, or name another folder"
                raise UnavailableError(message) from error
        else:
            target = Database(sqlite_url(file))
            target.upgrade()
            with target.write() as session:
                copy(connection, session.connection())
            target.close()
    return revision


def copy(source: Connection, target: Connection) -> None:
    """Copy the rows of all tables to a database whose tables are empty. Both have this version's schema."""
    source = source.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE)
    for table in Base.metadata.sorted_tables:
        for rows in source.execute(select(table)).mappings().partitions():
            target.execute(insert(table), [dict(row) for row in rows])
        counter = table.autoincrement_column
        if counter is not None and target.dialect.name == "postgresql":  # it counts on from the greatest id
            sequence = func.pg_get_serial_sequence(table.name, counter.name)
            greatest = select(func.coalesce(func.max(counter), 0) + 1).scalar_subquery()
            target.execute(select(func.setval(sequence, greatest, False)))


def counts(connection: Connection) -> dict[str, int]:
    tables = Base.metadata.sorted_tables
    return {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


def refuse_rows(target: Database, connection: Connection) -> None:
    """Raise ConfigurationError if a table of a database, whichever version's, has a row."""
    for name in inspect(connection).get_table_names():
        if name != "alembic_version":
            row = connection.execute(select(literal(1)).select_from(named_table(name)).limit(1)).first()
            if row is not None:
                raise ConfigurationError(
                    f"database {target.url.render_as_string()} is not empty: table {name} has rows; name a new data "
                    f"folder with --data, or a new database with DATABASE_URL"
                )


def _current_revision(source: Database, connection: Connection) -> str:
    """Return the revision of the schema. Raises ConfigurationError if it is not this version's."""
    from alembic.migration import MigrationContext

    revision, newest = MigrationContext.configure(connection).get_current_revision(), revisions()[-1]
    if revision != newest:
        raise ConfigurationError(
            f"database {source.url.render_as_string()} has the schema {revision or 'of no version'}, this version's is "
            f"{newest}; make the backup with the version of Batchyard that runs there, or run `batchyard migrate` first"
        )
    return newest
